#include "data/formats/parquet_column.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "data/formats/byte_stream.h"
#include "data/formats/parquet_delta.h"

namespace heddle::parquet {
namespace {

enum Encoding {
  kPlain = 0,
  kPlainDictionary = 2,
  kRuns = 3,
  kDeltas = 5,
  kDeltaLengths = 6,
  kDeltaTexts = 7,
  kDictionary = 8
};
enum PageType { kData1 = 0, kDictionaryPage = 2, kData2 = 3 };

int bits_for(int largest) {
  return static_cast<int>(std::bit_width(static_cast<unsigned>(largest)));
}

/// Types whose values become null: neither text nor a number of JSON.
bool is_opaque(Physical physical) {
  return physical == Physical::int96 || physical == Physical::fixed;
}

}  // namespace

void RunDecoder::refuse() const {
  refuse_damaged(*name_, "Parquet file", "levels or dictionary places of a page end too early");
}

void RunDecoder::begin_run() {
  std::uint64_t header = 0;
  for (int shift = 0;; shift += 7) {
    if (bytes_.empty() || shift > 28) refuse();
    const auto byte = static_cast<std::uint8_t>(bytes_.front());
    bytes_.remove_prefix(1);
    header |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) break;
  }
  is_packed_ = (header & 1) != 0;
  left_ = is_packed_ ? (header >> 1) * 8 : header >> 1;
  waiting_ = 0;
  waiting_bits_ = 0;
  if (is_packed_) return;
  const std::size_t width = (static_cast<std::size_t>(bits_) + 7) / 8;
  if (bytes_.size() < width) refuse();
  value_ = 0;
  for (std::size_t i = 0; i < width; ++i) {
    value_ |= static_cast<std::uint32_t>(static_cast<std::uint8_t>(bytes_[i])) << (8 * i);
  }
  bytes_.remove_prefix(width);
}

std::uint32_t RunDecoder::next() {
  if (bits_ == 0) return 0;
  while (left_ == 0) begin_run();
  --left_;
  if (!is_packed_) return value_;
  while (waiting_bits_ < bits_) {
    if (bytes_.empty()) refuse();
    waiting_ |= static_cast<std::uint64_t>(static_cast<std::uint8_t>(bytes_.front()))
                << waiting_bits_;
    bytes_.remove_prefix(1);
    waiting_bits_ += 8;
  }
  const auto value = static_cast<std::uint32_t>(waiting_ & ((std::uint64_t{1} << bits_) - 1));
  waiting_ >>= bits_;
  waiting_bits_ -= bits_;
  return value;
}

struct Column::PageHeader {
  std::int64_t type = -1, size = -1, packed = -1;  // bytes
  std::int64_t values = 0, encoding = -1;
  std::int64_t definition_encoding = kRuns, repetition_encoding = kRuns;
  std::int64_t definition_bytes = 0, repetition_bytes = 0;  // of version 2
  bool is_packed = true;
  std::size_t header_bytes = 0;
};

Column::Column(const FileBytes& file, const std::string& name, const Node& node, const Chunk& chunk)
    : file_(file),
      name_(name),
      node_(node),
      chunk_(chunk),
      at_(chunk.begin),
      end_(chunk.begin + chunk.size),
      entries_left_(chunk.values) {
  if (!chunk.packing) {
    throw Error(
        ErrorCode::data,
        fmt::format("{}: column \"{}\" is compressed by codec {} of Parquet (LZO, Brotli or "
                    "the old LZ4), which is not read",
                    name, node.name, chunk.codec),
        "write it again with snappy, gzip, zstd or lz4_raw");
  }
  if (entries_left_ > 0) load_entry();
}

void Column::refuse(const std::string& why) const {
  refuse_damaged(name_, "Parquet file", fmt::format("column \"{}\": {}", node_.name, why));
}

void Column::advance() {
  --entries_left_;
  --page_left_;
  if (entries_left_ > 0) load_entry();
}

void Column::load_entry() {
  while (page_left_ == 0) read_page();
  repeated_ = static_cast<int>(repetitions_.next());
  definition_ = static_cast<int>(definitions_.next());
  if (repeated_ > node_.repeated || definition_ > node_.definition) {
    refuse("a level is larger than the schema allows");
  }
}

Column::PageHeader Column::read_header() {
  const auto parse = [&](const std::string& bytes) {
    PageHeader header;
    Thrift thrift(bytes, name_);
    const auto read_data = [&](Thrift::Field field) {  // of version 1, or of a dictionary
      switch (field.id) {
        case 1: header.values = thrift.integer(field); return true;
        case 2: header.encoding = thrift.integer(field); return true;
        case 3:
          if (header.type != kData1) return false;
          header.definition_encoding = thrift.integer(field);
          return true;
        case 4: header.repetition_encoding = thrift.integer(field); return true;
        default: return false;
      }
    };
    const auto read_data_2 = [&](Thrift::Field field) {
      switch (field.id) {
        case 1: header.values = thrift.integer(field); return true;
        case 4: header.encoding = thrift.integer(field); return true;
        case 5: header.definition_bytes = thrift.integer(field); return true;
        case 6: header.repetition_bytes = thrift.integer(field); return true;
        case 7: header.is_packed = thrift.boolean(field); return true;
        default: return false;
      }
    };
    thrift.walk([&](Thrift::Field field) {
      switch (field.id) {
        case 1: header.type = thrift.integer(field); return true;
        case 2: header.size = thrift.integer(field); return true;
        case 3: header.packed = thrift.integer(field); return true;
        case 5:
        case 7:
          if (field.type != Thrift::Type::structure) return false;
          thrift.walk(read_data);
          return true;
        case 8:
          if (field.type != Thrift::Type::structure) return false;
          thrift.walk(read_data_2);
          return true;
        default: return false;
      }
    });
    header.header_bytes = bytes.size() - thrift.left().size();
    return header;
  };
  // Headers are short, unless they hold long texts as statistics.
  for (const std::uint64_t window : {std::uint64_t{1} << 10, std::uint64_t{1} << 18}) {
    if (end_ - at_ <= window) break;
    try {
      return parse(file_.read(at_, window));
    } catch (const Error&) {  // it may only be cut
    }
  }
  return parse(file_.read(at_, std::min<std::uint64_t>(end_ - at_, 1 << 24)));
}

void Column::read_page() {
  if (at_ >= end_) refuse(fmt::format("its pages lack {} values", entries_left_));
  const PageHeader header = read_header();
  at_ += header.header_bytes;
  const auto left = static_cast<std::int64_t>(end_ - at_);
  if (header.packed < 0 || header.packed > left || header.size < 0 || header.values < 0) {
    refuse(fmt::format("a page of {} bytes where {} are left", header.packed, left));
  }
  require_piece_fits(header.size, header.packed);
  const std::string packed = file_.read(at_, static_cast<std::size_t>(header.packed));
  at_ += packed.size();
  if (header.type == kDictionaryPage) return read_dictionary(header, packed);
  if (header.type == kData1) return read_data_1(header, packed);
  if (header.type == kData2) return read_data_2(header, packed);
}

void Column::require_piece_fits(std::int64_t size, std::int64_t packed) const {
  const auto most = static_cast<std::int64_t>(kLargestRecord);
  if (size > most || packed > most) refuse(fmt::format("a page of {} bytes", size));
}

std::string Column::unpacked(std::string_view packed, std::size_t size) const {
  std::string bytes;
  if (!unpack_block(*chunk_.packing, packed, size, bytes)) refuse("a page cannot be unpacked");
  return bytes;
}

void Column::read_dictionary(const PageHeader& header, std::string_view packed) {
  if (header.encoding != kPlain && header.encoding != kPlainDictionary) {
    refuse(fmt::format("its dictionary has encoding {}", header.encoding));
  }
  dictionary_.clear();
  if (is_opaque(chunk_.physical)) return;
  dictionary_bytes_ = unpacked(packed, static_cast<std::size_t>(header.size));
  std::string_view rest = dictionary_bytes_;
  for (std::int64_t i = 0; i < header.values; ++i) dictionary_.push_back(plain(rest));
}

void Column::read_data_1(const PageHeader& header, std::string_view packed) {
  page_ = unpacked(packed, static_cast<std::size_t>(header.size));
  ByteCursor cursor(page_, name_, "Parquet file");
  const auto levels = [&](int largest, std::int64_t encoding) {
    if (largest == 0) return RunDecoder();
    if (encoding != kRuns) refuse(fmt::format("levels have encoding {}", encoding));
    const auto size = cursor.take<std::uint32_t>();
    return RunDecoder(cursor.take_bytes(size), bits_for(largest), name_);
  };
  repetitions_ = levels(node_.repeated, header.repetition_encoding);
  definitions_ = levels(node_.definition, header.definition_encoding);
  page_left_ = header.values;
  begin_values(static_cast<int>(header.encoding), cursor.left());
}

void Column::read_data_2(const PageHeader& header, std::string_view packed) {
  const std::int64_t repetition = header.repetition_bytes, definition = header.definition_bytes;
  const std::int64_t most = std::min(header.packed, header.size);
  if (repetition < 0 || definition < 0 || repetition > most || definition > most - repetition) {
    refuse("the levels of a page are longer than the page");
  }
  const auto levels = static_cast<std::size_t>(repetition + definition);
  const std::size_t size = static_cast<std::size_t>(header.size) - levels;
  const std::string values = header.is_packed && size > 0 ? unpacked(packed.substr(levels), size)
                                                          : std::string(packed.substr(levels));
  page_ = std::string(packed.substr(0, levels)) + values;
  const std::string_view page = page_;
  repetitions_ = RunDecoder(page.substr(0, static_cast<std::size_t>(repetition)),
                            bits_for(node_.repeated), name_);
  definitions_ = RunDecoder(
      page.substr(static_cast<std::size_t>(repetition), static_cast<std::size_t>(definition)),
      bits_for(node_.definition), name_);
  page_left_ = header.values;
  begin_values(static_cast<int>(header.encoding), page.substr(levels));
}

void Column::begin_values(int encoding, std::string_view bytes) {
  rest_ = bytes;
  bit_ = 0;
  switch (encoding) {
    case kPlain: values_ = Values::plain; return;
    case kPlainDictionary:
    case kDictionary: {
      values_ = Values::dictionary;
      if (bytes.empty()) {  // a page of nothing but nulls
        places_ = RunDecoder(bytes, 1, name_);
        return;
      }
      const int bits = static_cast<std::uint8_t>(bytes.front());
      if (bits > 32) refuse(fmt::format("places of {} bits in a dictionary", bits));
      places_ = RunDecoder(bytes.substr(1), bits, name_);
      return;
    }
    case kRuns: {
      if (chunk_.physical != Physical::boolean) break;
      values_ = Values::flags;
      ByteCursor cursor(bytes, name_, "Parquet file");
      const auto size = cursor.take<std::uint32_t>();
      places_ = RunDecoder(cursor.take_bytes(size), 1, name_);
      return;
    }
    case kDeltas:
    case kDeltaLengths:
    case kDeltaTexts: begin_deltas(encoding, bytes); return;
    default: break;
  }
  if (is_opaque(chunk_.physical)) return;
  throw Error(ErrorCode::data,
              fmt::format("{}: column \"{}\" has encoding {} of Parquet, which is not read", name_,
                          node_.name, encoding),
              "write it again with plain or dictionary encoding");
}

void Column::begin_deltas(int encoding, std::string_view bytes) {
  const bool is_text = chunk_.physical == Physical::bytes;
  const bool is_number = chunk_.physical == Physical::int32 || chunk_.physical == Physical::int64;
  if (is_opaque(chunk_.physical)) return;
  if (encoding == kDeltas ? !is_number : !is_text) {
    refuse(fmt::format("encoding {} of another type", encoding));
  }
  values_ = Values::decoded;
  next_decoded_ = 0;
  numbers_.clear();
  texts_.clear();
  if (encoding == kDeltas) {
    numbers_ = decode_deltas(bytes, name_);
  } else {
    texts_ = encoding == kDeltaLengths ? decode_delta_lengths(bytes, name_)
                                       : decode_delta_texts(bytes, name_);
  }
}

Value Column::plain(std::string_view& bytes) const {
  ByteCursor cursor(bytes, name_, "Parquet file");
  Value value;
  switch (chunk_.physical) {
    case Physical::int32: value = std::int64_t{cursor.take<std::int32_t>()}; break;
    case Physical::int64: value = cursor.take<std::int64_t>(); break;
    case Physical::real32: value = double{cursor.take<float>()}; break;
    case Physical::real64: value = cursor.take<double>(); break;
    case Physical::bytes: value = cursor.take_bytes(cursor.take<std::uint32_t>()); break;
    case Physical::boolean:
    case Physical::int96:
    case Physical::fixed: refuse("a dictionary of such a type");
  }
  bytes = cursor.left();
  return value;
}

Value Column::take_value() {
  if (is_opaque(chunk_.physical)) return {};
  switch (values_) {
    case Values::plain:
      if (chunk_.physical == Physical::boolean) {
        if (rest_.empty()) refuse("a page has too few values");
        const bool value = (rest_.front() >> bit_ & 1) != 0;
        if (++bit_ == 8) {
          rest_.remove_prefix(1);
          bit_ = 0;
        }
        return value;
      }
      return plain(rest_);
    case Values::dictionary: {
      const std::uint32_t place = places_.next();
      if (place >= dictionary_.size()) {
        refuse(fmt::format("place {} in a dictionary of {}", place, dictionary_.size()));
      }
      return dictionary_[place];
    }
    case Values::flags: return places_.next() != 0;
    case Values::decoded: break;
  }
  const std::size_t count = std::max(texts_.size(), numbers_.size());
  if (next_decoded_ >= count) refuse("a page has too few values");
  const std::size_t index = next_decoded_++;
  return texts_.empty() ? Value(numbers_[index]) : Value(std::string_view(texts_[index]));
}

}  // namespace heddle::parquet
