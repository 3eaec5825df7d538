#include "data/formats/flatbuffer.h"

namespace heddle {

FlatTable FlatTable::root(std::string_view bytes, const std::string& name) {
  ByteCursor cursor(bytes, name, "Arrow file");
  return {bytes, name, cursor.take<std::uint32_t>()};
}

FlatTable::FlatTable(std::string_view bytes, const std::string& name, std::uint64_t at)
    : bytes_(bytes), name_(&name), at_(at) {
  // The list of fields lies so many bytes before the table, or behind it.
  const std::int64_t list = static_cast<std::int64_t>(at) - load<std::int32_t>(at);
  if (list < 0) refuse();
  fields_ = static_cast<std::uint64_t>(list);
  fields_bytes_ = load<std::uint16_t>(fields_);
}

std::uint64_t FlatTable::place_of_field(int field) const {
  const std::uint64_t entry = 4 + 2 * static_cast<std::uint64_t>(field);
  if (entry + 2 > fields_bytes_) return 0;
  const auto offset = load<std::uint16_t>(fields_ + entry);
  return offset == 0 ? 0 : at_ + offset;
}

FlatTable FlatTable::table(int field) const {
  const std::uint64_t at = place_of_field(field);
  if (at == 0) refuse();
  return {bytes_, *name_, at + load<std::uint32_t>(at)};
}

std::uint64_t FlatTable::vector_at(int field) const {
  const std::uint64_t at = place_of_field(field);
  if (at == 0) refuse();
  return at + load<std::uint32_t>(at);
}

std::uint64_t FlatTable::count(int field, std::uint64_t size) const {
  if (!has(field)) return 0;
  const std::uint64_t at = vector_at(field);
  const std::uint64_t count = load<std::uint32_t>(at);
  if (count * size > bytes_.size() - at - 4) refuse();
  return count;
}

FlatTable FlatTable::element(int field, std::uint64_t index) const {
  const std::uint64_t at = vector_at(field) + 4 + index * 4;
  return {bytes_, *name_, at + load<std::uint32_t>(at)};
}

std::string FlatTable::text(int field) const {
  const std::uint64_t size = count(field, 1);
  return size == 0 ? "" : std::string(bytes_.substr(vector_at(field) + 4, size));
}

void FlatTable::refuse() const {
  refuse_damaged(*name_, "Arrow file", "its metadata leads outside of itself");
}

}  // namespace heddle
