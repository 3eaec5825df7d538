#include "data/formats/parquet_delta.h"

#include <algorithm>

#include "data/formats/byte_stream.h"
#include "data/formats/file_bytes.h"

namespace heddle::parquet {
namespace {

/// Writers use 128 or 256; a limit on what few bytes can stand for.
constexpr std::uint64_t kLargestDeltaBlock = 1 << 16;

class DeltaReader {
 public:
  DeltaReader(std::string_view bytes, const std::string& name)
      : bytes_(bytes, name, "Parquet file") {}

  std::vector<std::int64_t> numbers() {
    const std::uint64_t block = varint(), pieces = varint(), count = varint();
    std::uint64_t value = zigzag();
    const std::uint64_t size = pieces == 0 ? 0 : block / pieces;
    if (block > kLargestDeltaBlock || size == 0 || size % 8 != 0 || size * pieces != block) {
      bytes_.refuse(fmt::format("blocks of {} differences in {} pieces", block, pieces));
    }
    std::vector<std::int64_t> values;
    if (count > 0) values.push_back(static_cast<std::int64_t>(value));
    while (values.size() < count) {
      const std::uint64_t least = zigzag();
      const std::string_view widths = bytes_.take_bytes(pieces);
      for (const char width : widths) {
        if (values.size() == count) break;
        const int bits = static_cast<std::uint8_t>(width);
        if (bits > 64) bytes_.refuse(fmt::format("differences of {} bits", bits));
        const std::string_view packed =
            bytes_.take_bytes(size * static_cast<std::uint64_t>(bits) / 8);
        for (std::uint64_t i = 0; i < size && values.size() < count; ++i) {
          value += least + bits_at(packed, i * static_cast<std::uint64_t>(bits), bits);
          values.push_back(static_cast<std::int64_t>(value));
        }
      }
    }
    return values;
  }

  std::vector<std::string> texts() {
    const std::vector<std::int64_t> lengths = numbers();
    std::vector<std::string> texts;
    for (const std::int64_t length : lengths) {
      if (length < 0) bytes_.refuse("a text of negative length");
      texts.emplace_back(bytes_.take_bytes(static_cast<std::uint64_t>(length)));
    }
    return texts;
  }

  [[noreturn]] void refuse(const std::string& why) const { bytes_.refuse(why); }

 private:
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = bytes_.take<std::uint8_t>();
      value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    bytes_.refuse("a number of a page has no end");
  }
  /// As unsigned: differences wrap around.
  std::uint64_t zigzag() {
    const std::uint64_t value = varint();
    return (value >> 1) ^ (~(value & 1) + 1);
  }
  static std::uint64_t bits_at(std::string_view bytes, std::uint64_t at, int bits) {
    std::uint64_t value = 0;
    for (int i = 0; i < bits; ++i, ++at) {
      value |= static_cast<std::uint64_t>(bytes[at / 8] >> (at % 8) & 1) << i;
    }
    return value;
  }

  ByteCursor bytes_;
};

}  // namespace

std::vector<std::int64_t> decode_deltas(std::string_view bytes, const std::string& name) {
  return DeltaReader(bytes, name).numbers();
}

std::vector<std::string> decode_delta_lengths(std::string_view bytes, const std::string& name) {
  return DeltaReader(bytes, name).texts();
}

std::vector<std::string> decode_delta_texts(std::string_view bytes, const std::string& name) {
  DeltaReader reader(bytes, name);
  const std::vector<std::int64_t> shared = reader.numbers();
  std::vector<std::string> texts = reader.texts();
  if (shared.size() != texts.size()) reader.refuse("as many beginnings as texts are needed");
  std::size_t total = 0;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const std::string_view before = i == 0 ? std::string_view() : std::string_view(texts[i - 1]);
    if (shared[i] < 0 || static_cast<std::uint64_t>(shared[i]) > before.size()) {
      reader.refuse("a text shares more than the one before has");
    }
    texts[i].insert(0, before.substr(0, static_cast<std::size_t>(shared[i])));
    total += texts[i].size();
    if (total > kLargestRecord) reader.refuse("the texts of a page are too long");
  }
  return texts;
}

}  // namespace heddle::parquet
