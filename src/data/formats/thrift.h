#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "data/formats/file_bytes.h"

namespace heddle {

/// Reads structures of Thrift's compact protocol, as Parquet has them: whoever knows the structure
/// walks its fields, takes those it needs and skips the others. Every fault is an Error(data).
class Thrift {
 public:
  enum class Type : std::uint8_t {
    stop,
    yes,
    no,
    i8,
    i16,
    i32,
    i64,
    real,
    binary,
    list,
    set,
    map,
    structure
  };
  struct Field {
    int id = 0;
    Type type = Type::stop;
  };

  Thrift(std::string_view bytes, const std::string& name) : bytes_(bytes, name, "Parquet file") {}

  /// The next field of the structure whose last field had the id `last`; Type::stop at its end.
  Field field(int last);
  std::int64_t integer(Field field);
  bool boolean(Field field) const;
  std::string text(Field field);
  /// Of a list: the number of elements, which must be of the type.
  std::size_t list(Field field, Type element);
  /// A list's element as a field.
  static Field element(Type type) { return {.id = 0, .type = type}; }
  void skip(Field field) { skip(field, 0); }
  /// Bytes that are left behind what was read.
  std::string_view left() const { return bytes_.left(); }

  /// Calls `take(field)` for each field of a structure; it returns whether it has read it.
  template <class Take>
  void walk(Take&& take) {
    for (Field next = field(0); next.type != Type::stop; next = field(next.id)) {
      if (!take(next)) skip(next);
    }
  }
  [[noreturn]] void refuse(const std::string& why) const { bytes_.refuse(why); }

 private:
  std::uint64_t varint();
  std::int64_t zigzag();
  std::size_t list_size(Type& element);
  void skip(Field field, int depth);

  ByteCursor bytes_;
};

}  // namespace heddle
