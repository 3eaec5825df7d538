#include "data/formats/thrift.h"

namespace heddle {
namespace {

constexpr int kDeepest = 32;

}  // namespace

std::uint64_t Thrift::varint() {
  std::uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const auto byte = bytes_.take<std::uint8_t>();
    value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return value;
  }
  refuse("a number of its metadata has no end");
}

std::int64_t Thrift::zigzag() {
  const std::uint64_t value = varint();
  return static_cast<std::int64_t>((value >> 1) ^ (~(value & 1) + 1));
}

Thrift::Field Thrift::field(int last) {
  const auto byte = bytes_.take<std::uint8_t>();
  if (byte == 0) return {};
  const int type = byte & 15, step = byte >> 4;
  if (type > static_cast<int>(Type::structure)) refuse("its metadata has a field of unknown type");
  const std::int64_t id = step == 0 ? zigzag() : last + step;
  if (id < 0 || id > 32767) refuse("its metadata has a field of no possible number");
  return {.id = static_cast<int>(id), .type = static_cast<Type>(type)};
}

std::int64_t Thrift::integer(Field field) {
  switch (field.type) {
    case Type::i8: return bytes_.take<std::int8_t>();
    case Type::i16:
    case Type::i32:
    case Type::i64: return zigzag();
    default: refuse("a number of its metadata is none");
  }
}

bool Thrift::boolean(Field field) const {
  if (field.type != Type::yes && field.type != Type::no) refuse("a flag of its metadata is none");
  return field.type == Type::yes;
}

std::string Thrift::text(Field field) {
  if (field.type != Type::binary) refuse("a name of its metadata is none");
  return std::string(bytes_.take_bytes(varint()));
}

std::size_t Thrift::list_size(Type& element) {
  const auto byte = bytes_.take<std::uint8_t>();
  if ((byte & 15) > static_cast<int>(Type::structure))
    refuse("its metadata has a list of unknown type");
  element = static_cast<Type>(byte & 15);
  const std::uint64_t size = byte >> 4 == 15 ? varint() : byte >> 4;
  // Every element takes a byte at least, so that a short file cannot promise many.
  if (size > bytes_.left().size()) refuse("a list of its metadata is longer than the rest of it");
  return size;
}

std::size_t Thrift::list(Field field, Type element) {
  if (field.type != Type::list) refuse("a list of its metadata is none");
  Type found = Type::stop;
  const std::size_t size = list_size(found);
  if (size > 0 && found != element) refuse("a list of its metadata has elements of another type");
  return size;
}

void Thrift::skip(Field field, int depth) {
  if (depth > kDeepest) refuse("its metadata is nested too deeply");
  switch (field.type) {
    case Type::stop:
    case Type::yes:
    case Type::no: return;
    case Type::i8: bytes_.take_bytes(1); return;
    case Type::i16:
    case Type::i32:
    case Type::i64: varint(); return;
    case Type::real: bytes_.take_bytes(8); return;
    case Type::binary: bytes_.take_bytes(varint()); return;
    case Type::list:
    case Type::set: {
      Type element = Type::stop;
      const std::size_t size = list_size(element);
      const bool is_flag = element == Type::yes || element == Type::no;
      for (std::size_t i = 0; i < size; ++i) {
        is_flag ? void(bytes_.take_bytes(1)) : skip({0, element}, depth + 1);
      }
      return;
    }
    case Type::map: {
      const std::uint64_t size = varint();
      if (size > bytes_.left().size())
        refuse("a map of its metadata is longer than the rest of it");
      if (size == 0) return;
      const auto types = bytes_.take<std::uint8_t>();
      if ((types & 15) > 12 || types >> 4 > 12) refuse("its metadata has a map of unknown type");
      for (std::uint64_t i = 0; i < size; ++i) {
        skip({0, static_cast<Type>(types >> 4)}, depth + 1);
        skip({0, static_cast<Type>(types & 15)}, depth + 1);
      }
      return;
    }
    case Type::structure:
      for (Field next = this->field(0); next.type != Type::stop; next = this->field(next.id)) {
        skip(next, depth + 1);
      }
      return;
  }
}

}  // namespace heddle
