#include "tokenizer/files/protobuf.h"

#include <bit>
#include <cstring>

#include "base/error.h"

namespace heddle {

static_assert(std::endian::native == std::endian::little, "fixed numbers are read as they lie");

void ProtoReader::refuse() const {
  throw Error(ErrorCode::data, where_ + " is damaged, or no SentencePiece model", "");
}

std::string_view ProtoReader::take(std::uint64_t count) {
  if (count > rest_.size()) refuse();
  const std::string_view taken = rest_.substr(0, count);
  rest_.remove_prefix(count);
  return taken;
}

std::uint64_t ProtoReader::varint() {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const auto byte = static_cast<unsigned char>(take(1)[0]);
    value |= std::uint64_t{byte & 127U} << shift;
    if (byte < 128) return value;
  }
  refuse();
}

bool ProtoReader::next(ProtoField& field) {
  if (rest_.empty()) return false;
  const std::uint64_t tag = varint();
  if (tag >> 3 == 0 || tag >> 32 != 0) refuse();
  field = {.number = static_cast<std::uint32_t>(tag >> 3)};
  switch (tag & 7) {
    case 0: field.value = varint(); return true;
    case 1: std::memcpy(&field.value, take(8).data(), 8); return true;
    case 2: field.bytes = take(varint()); return true;
    case 5: std::memcpy(&field.value, take(4).data(), 4); return true;
    default: refuse();
  }
}

}  // namespace heddle
