#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "data/formats/file_bytes.h"

namespace heddle {

/// A table of a flatbuffer, as Arrow describes its messages with: fields are known by number, and
/// absent ones have a default. Everything that would lie outside of the bytes is an Error(data).
class FlatTable {
 public:
  /// The root of a buffer.
  static FlatTable root(std::string_view bytes, const std::string& name);

  template <class T>
  T number(int field, T absent) const {
    const std::uint64_t at = place_of_field(field);
    return at == 0 ? absent : load<T>(at);
  }
  bool has(int field) const { return place_of_field(field) != 0; }
  /// The table that a field refers to; it must be there.
  FlatTable table(int field) const;
  std::string text(int field) const;

  /// Of a field that is a vector of elements of `size` bytes: how many there are (0 when absent).
  std::uint64_t count(int field, std::uint64_t size) const;
  FlatTable element(int field, std::uint64_t index) const;  ///< of tables
  /// A number `offset` bytes into element `index` of a vector of structures of `size` bytes.
  template <class T>
  T element_number(int field, std::uint64_t index, std::uint64_t size, std::uint64_t offset) const {
    return load<T>(vector_at(field) + 4 + index * size + offset);
  }

 private:
  FlatTable(std::string_view bytes, const std::string& name, std::uint64_t at);
  template <class T>
  T load(std::uint64_t at) const {
    if (at > bytes_.size() || sizeof(T) > bytes_.size() - at) refuse();
    T value;
    std::memcpy(&value, bytes_.data() + at, sizeof value);
    return value;
  }
  /// 0 when absent: no field lies there.
  std::uint64_t place_of_field(int field) const;
  std::uint64_t vector_at(int field) const;
  [[noreturn]] void refuse() const;

  std::string_view bytes_;
  const std::string* name_;
  std::uint64_t at_ = 0, fields_ = 0;  // the table; its list of fields
  std::uint16_t fields_bytes_ = 0;
};

}  // namespace heddle
