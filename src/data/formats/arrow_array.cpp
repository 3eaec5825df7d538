#include "data/formats/arrow_array.h"

#include <algorithm>
#include <tuple>

#include "base/json.h"
#include "data/formats/byte_stream.h"

namespace heddle::arrow {
namespace {

constexpr int kDeepestField = 64;
constexpr int kMostFields = 100'000;
/// In one row: a limit on what lists of nothing could stand for.
constexpr std::int64_t kMostValues = std::int64_t{1} << 26;

/// Numbers of Arrow's types.
enum Type {
  kNull = 1,
  kInt,
  kReal,
  kBinary,
  kText,
  kFlag,
  kDecimal,
  kDate,
  kTime,
  kTimestamp,
  kInterval,
  kList,
  kStruct,
  kUnion,
  kFixedBinary,
  kFixedList,
  kMap,
  kDuration,
  kLargeBinary,
  kLargeText,
  kLargeList,
  kRunEnds,
  kBinaryView,
  kTextView
};

int checked_width(std::int32_t bits, const std::string& name) {
  if (bits != 8 && bits != 16 && bits != 32 && bits != 64 && bits != 128 && bits != 256) {
    refuse_damaged(name, "Arrow file", fmt::format("numbers of {} bits", bits));
  }
  return bits / 8;
}

void set_integer(Field& field, int width) {
  field.layout = Layout::integer;
  field.width = width;
}

void set_type(Field& field, int type, const FlatTable& table, const std::string& name) {
  const auto unit = [&] { return table.table(3).number<std::int16_t>(0, 0); };
  switch (type) {
    case kNull: field.layout = Layout::null; return;
    case kFlag: field.layout = Layout::flags; return;
    case kInt:
      set_integer(field, checked_width(table.table(3).number<std::int32_t>(0, 0), name));
      field.is_signed = table.table(3).number<std::uint8_t>(1, 0) != 0;
      return;
    case kReal:
      field.width = 2 << std::clamp<int>(unit(), 0, 2);
      field.layout = field.width == 2 ? Layout::opaque : Layout::real;
      return;
    case kDate: set_integer(field, table.table(3).number<std::int16_t>(0, 1) == 0 ? 4 : 8); return;
    case kTime:
      set_integer(field, checked_width(table.table(3).number<std::int32_t>(1, 32), name));
      return;
    case kTimestamp:
    case kDuration: set_integer(field, 8); return;
    case kDecimal:
      field.layout = Layout::opaque;
      field.width = checked_width(table.table(3).number<std::int32_t>(2, 128), name);
      return;
    case kInterval:
      field.layout = Layout::opaque;
      field.width = 4 << std::clamp<int>(unit(), 0, 2);
      return;
    case kFixedBinary: field.layout = Layout::opaque; return;
    case kBinary:
    case kText: field.layout = Layout::text; return;
    case kLargeBinary:
    case kLargeText: field.layout = Layout::large_text; return;
    case kBinaryView:
    case kTextView: field.layout = Layout::text_view; return;
    case kList:
    case kMap: field.layout = Layout::list; return;
    case kLargeList: field.layout = Layout::large_list; return;
    case kFixedList:
      field.layout = Layout::fixed_list;
      field.width = table.table(3).number<std::int32_t>(0, 0);
      if (field.width < 0) refuse_damaged(name, "Arrow file", "a list of negative length");
      return;
    case kStruct: field.layout = Layout::structure; return;
    default: break;
  }
  throw Error(ErrorCode::data,
              fmt::format("{}: column \"{}\" is of type {} of Arrow, which is not read", name,
                          field.name, type),
              "write the file without it, or as Parquet");
}

template <class T>
T load_at(const std::string& bytes, std::int64_t index, const std::string& name) {
  const std::uint64_t count = bytes.size() / sizeof(T);
  if (index < 0 || static_cast<std::uint64_t>(index) >= count) {
    refuse_damaged(name, "Arrow file", fmt::format("value {} where a buffer has {}", index, count));
  }
  T value;
  std::memcpy(&value, bytes.data() + static_cast<std::size_t>(index) * sizeof(T), sizeof(T));
  return value;
}

bool bit_at(const std::string& bytes, std::int64_t index, const std::string& name) {
  return (load_at<std::uint8_t>(bytes, index / 8, name) >> (index % 8) & 1) != 0;
}

std::int64_t integer_at(const std::string& bytes, int width, bool is_signed, std::int64_t index,
                        const std::string& name) {
  switch (width) {
    case 1:
      return is_signed ? std::int64_t{load_at<std::int8_t>(bytes, index, name)}
                       : std::int64_t{load_at<std::uint8_t>(bytes, index, name)};
    case 2:
      return is_signed ? std::int64_t{load_at<std::int16_t>(bytes, index, name)}
                       : std::int64_t{load_at<std::uint16_t>(bytes, index, name)};
    case 4:
      return is_signed ? std::int64_t{load_at<std::int32_t>(bytes, index, name)}
                       : std::int64_t{load_at<std::uint32_t>(bytes, index, name)};
    default: return load_at<std::int64_t>(bytes, index, name);
  }
}

/// [begin, end) of value `index` in what its offsets speak of, which has `limit`.
std::pair<std::int64_t, std::int64_t> range_at(const Array& array, bool is_large,
                                               std::int64_t index, std::int64_t limit,
                                               const std::string& name) {
  const auto offset = [&](std::int64_t i) {
    return is_large ? load_at<std::int64_t>(array.offsets, i, name)
                    : std::int64_t{load_at<std::int32_t>(array.offsets, i, name)};
  };
  const std::int64_t begin = offset(index), end = offset(index + 1);
  if (begin < 0 || end < begin || end > limit) {
    refuse_damaged(name, "Arrow file",
                   fmt::format("a value from {} to {} of {}", begin, end, limit));
  }
  return {begin, end};
}

std::string_view text_view_at(const Array& array, std::int64_t index, const std::string& name) {
  struct View {
    std::int32_t length;
    char start[4];
    std::int32_t buffer, offset;
  };
  constexpr std::int32_t kInPlace = 12;
  const auto view = load_at<View>(array.values, index, name);
  const std::size_t at = static_cast<std::size_t>(index) * sizeof(View) + 4;
  if (view.length >= 0 && view.length <= kInPlace) {
    return std::string_view(array.values).substr(at, static_cast<std::size_t>(view.length));
  }
  const auto buffers = static_cast<std::int64_t>(array.more.size());
  if (view.length < 0 || view.buffer < 0 || view.buffer >= buffers || view.offset < 0) {
    refuse_damaged(name, "Arrow file", "a text of negative length or place");
  }
  const std::string_view bytes = array.more[static_cast<std::size_t>(view.buffer)];
  const auto begin = static_cast<std::size_t>(view.offset);
  const auto length = static_cast<std::size_t>(view.length);
  if (begin > bytes.size() || length > bytes.size() - begin) {
    refuse_damaged(name, "Arrow file", "a text outside of its buffer");
  }
  return bytes.substr(begin, length);
}

/// Reads fields and counts them: tables may be referred to many times, so that a few bytes could
/// stand for very many.
class SchemaReader {
 public:
  explicit SchemaReader(const std::string& name) : name_(name) {}

  /// The fields that number `list` of a table lists.
  std::vector<Field> read(const FlatTable& table, int list, int depth) {
    if (depth > kDeepestField) refuse("its schema is nested too deeply");
    std::vector<Field> fields;
    const std::uint64_t count = table.count(list, 4);
    for (std::uint64_t i = 0; i < count; ++i) {
      fields.push_back(read_one(table.element(list, i), depth));
    }
    return fields;
  }

 private:
  Field read_one(const FlatTable& table, int depth) {
    if (++count_ > kMostFields) refuse("its schema has too many columns");
    Field field{.name = table.text(0)};
    set_type(field, table.number<std::uint8_t>(2, 0), table, name_);
    if (table.has(4)) {
      const FlatTable dictionary = table.table(4);
      field.has_dictionary = true;
      field.dictionary = dictionary.number<std::int64_t>(0, 0);
      field.place_width = 4;
      if (dictionary.has(1)) {
        const FlatTable place = dictionary.table(1);
        field.place_width = checked_width(place.number<std::int32_t>(0, 0), name_);
        field.is_place_signed = place.number<std::uint8_t>(1, 0) != 0;
      }
    }
    field.children = read(table, 5, depth + 1);
    const bool is_list = field.layout == Layout::list || field.layout == Layout::large_list ||
                         field.layout == Layout::fixed_list;
    if (is_list && field.children.size() != 1) refuse("a list without its one element");
    return field;
  }
  [[noreturn]] void refuse(const std::string& why) const {
    refuse_damaged(name_, "Arrow file", why);
  }

  const std::string& name_;
  int count_ = 0;
};

}  // namespace

std::vector<Field> read_fields(const FlatTable& schema, const std::string& name) {
  return SchemaReader(name).read(schema, 1, 0);
}

BatchReader::BatchReader(const FileBytes& file, const std::string& name, const FlatTable& batch,
                         std::uint64_t at, std::uint64_t size)
    : file_(file),
      name_(name),
      batch_(batch),
      at_(at),
      size_(size),
      rows_(batch.number<std::int64_t>(0, 0)),
      nodes_(batch.count(1, 16)),
      buffers_(batch.count(2, 16)),
      more_(batch.count(4, 8)) {
  if (rows_ < 0) refuse("a batch of negative length");
  if (!batch.has(3)) return;
  const FlatTable compression = batch.table(3);
  const auto codec = compression.number<std::int8_t>(0, 0);
  if (codec != 0 && codec != 1) refuse(fmt::format("compression {} is not known", codec));
  packing_ = codec == 0 ? BlockPacking::lz4_frame : BlockPacking::zstd;
}

void BatchReader::refuse(const std::string& why) const { refuse_damaged(name_, "Arrow file", why); }

std::string BatchReader::buffer(bool is_wanted) {
  if (next_buffer_ == buffers_) refuse("a batch has too few buffers");
  const auto begin = batch_.element_number<std::int64_t>(2, next_buffer_, 16, 0);
  const auto size = batch_.element_number<std::int64_t>(2, next_buffer_, 16, 8);
  ++next_buffer_;
  const auto limit = static_cast<std::int64_t>(size_);
  if (begin < 0 || size < 0 || begin > limit || size > limit - begin) {
    refuse(fmt::format("a buffer at {} with {} bytes in a body of {}", begin, size, limit));
  }
  if (!is_wanted || size == 0) return "";
  std::string bytes =
      file_.read(at_ + static_cast<std::uint64_t>(begin), static_cast<std::size_t>(size));
  if (packing_ == BlockPacking::none) return bytes;
  ByteCursor cursor(bytes, name_, "Arrow file");
  const auto unpacked = cursor.take<std::int64_t>();
  if (unpacked == -1) return std::string(cursor.left());  // packing would not have made it smaller
  std::string out;
  const bool fits = unpacked >= 0 && unpacked <= static_cast<std::int64_t>(kLargestRecord);
  if (!fits || !unpack_block(packing_, cursor.left(), static_cast<std::size_t>(unpacked), out)) {
    refuse("a buffer cannot be unpacked");
  }
  return out;
}

Array BatchReader::take(const Field& field, bool is_wanted) {
  return take_as(field, field.has_dictionary, is_wanted);
}

Array BatchReader::take_dictionary(const Field& field) { return take_as(field, false, true); }

Array BatchReader::take_as(const Field& field, bool is_dictionary, bool is_wanted) {
  if (next_node_ == nodes_) refuse("a batch has fewer columns than the schema");
  Array array{.field = &field,
              .length = batch_.element_number<std::int64_t>(1, next_node_++, 16, 0)};
  if (array.length < 0) refuse("a column of negative length");
  if (is_dictionary) {
    array.validity = buffer(is_wanted);
    array.values = buffer(is_wanted);
    return array;
  }
  if (field.layout == Layout::null) return array;
  array.validity = buffer(is_wanted);
  switch (field.layout) {
    case Layout::text:
    case Layout::large_text:
      array.offsets = buffer(is_wanted);
      array.values = buffer(is_wanted);
      break;
    case Layout::list:
    case Layout::large_list: array.offsets = buffer(is_wanted); break;
    case Layout::text_view: {
      array.values = buffer(is_wanted);
      if (next_more_ == more_) refuse("a batch does not say how many buffers its texts have");
      const auto count = batch_.element_number<std::int64_t>(4, next_more_++, 8, 0);
      for (std::int64_t i = 0; i < count; ++i) array.more.push_back(buffer(is_wanted));
      break;
    }
    case Layout::fixed_list:
    case Layout::structure: break;
    default: array.values = buffer(is_wanted); break;
  }
  for (const Field& child : field.children) array.children.push_back(take(child, is_wanted));
  return array;
}

namespace {

/// Makes JSON of values, one row at a time.
class ValueReader {
 public:
  ValueReader(const Dictionaries& dictionaries, const std::string& name)
      : dictionaries_(dictionaries), name_(name) {}

  Json read(const Array& array, std::int64_t index) {
    return read(array, array.field->has_dictionary, index, 0);
  }

 private:
  Json read(const Array& array, bool is_dictionary, std::int64_t index, int depth) {
    if (index < 0 || index >= array.length) {
      refuse(fmt::format("value {} of {}", index, array.length));
    }
    if (depth > 2 * kDeepestField || ++count_ > kMostValues) refuse("a row is too large");
    if (!array.validity.empty() && !bit_at(array.validity, index, name_)) return {};
    if (is_dictionary) return from_dictionary(array, index, depth);
    switch (array.field->layout) {
      case Layout::null:
      case Layout::opaque: return {};
      case Layout::flags: return bit_at(array.values, index, name_);
      case Layout::integer:
      case Layout::real: return number(array, index);
      case Layout::text:
      case Layout::large_text: {
        const auto [begin, end] = range_at(array, array.field->layout == Layout::large_text, index,
                                           static_cast<std::int64_t>(array.values.size()), name_);
        return std::string_view(array.values)
            .substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
      }
      case Layout::text_view: return text_view_at(array, index, name_);
      case Layout::list:
      case Layout::large_list:
      case Layout::fixed_list: return list(array, index, depth);
      case Layout::structure: break;
    }
    Json object = Json::object();
    for (const Array& child : array.children) {
      object[child.field->name] = read(child, child.field->has_dictionary, index, depth + 1);
    }
    return object;
  }

  Json number(const Array& array, std::int64_t index) const {
    const Field& field = *array.field;
    if (field.layout == Layout::real) {
      return field.width == 4 ? double{load_at<float>(array.values, index, name_)}
                              : load_at<double>(array.values, index, name_);
    }
    if (field.width > 8) return {};
    const auto number = integer_at(array.values, field.width, field.is_signed, index, name_);
    if (field.width == 8 && !field.is_signed) return static_cast<std::uint64_t>(number);
    return number;
  }

  Json list(const Array& array, std::int64_t index, int depth) {
    const Field& field = *array.field;
    const Array& elements = array.children.front();
    std::int64_t begin = 0, end = 0;
    if (field.layout == Layout::fixed_list) {
      if (field.width > 0 && index >= elements.length / field.width) {
        refuse("a list outside of its elements");
      }
      begin = index * field.width;
      end = begin + field.width;
    } else {
      std::tie(begin, end) =
          range_at(array, field.layout == Layout::large_list, index, elements.length, name_);
    }
    Json list = Json::array();
    for (std::int64_t i = begin; i < end; ++i) {
      list.push_back(read(elements, elements.field->has_dictionary, i, depth + 1));
    }
    return list;
  }

  Json from_dictionary(const Array& array, std::int64_t index, int depth) {
    const Field& field = *array.field;
    std::int64_t place =
        integer_at(array.values, field.place_width, field.is_place_signed, index, name_);
    const auto found = dictionaries_.find(field.dictionary);
    if (found == dictionaries_.end()) refuse("a dictionary is missing");
    for (const Array& piece : found->second) {
      if (place < piece.length) return read(piece, false, place, depth + 1);
      place -= piece.length;
    }
    refuse("a place outside of its dictionary");
  }

  [[noreturn]] void refuse(const std::string& why) const {
    refuse_damaged(name_, "Arrow file", why);
  }

  const Dictionaries& dictionaries_;
  const std::string& name_;
  std::int64_t count_ = 0;
};

}  // namespace

Json value_at(const Array& array, std::int64_t index, const Dictionaries& dictionaries,
              const std::string& name) {
  return ValueReader(dictionaries, name).read(array, index);
}

}  // namespace heddle::arrow
