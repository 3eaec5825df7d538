#pragma once

#include <concepts>
#include <cstddef>
#include <span>
#include <vector>

namespace heddle::recover {

template <std::unsigned_integral T>
void put_number(std::vector<std::byte>& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    out.push_back(static_cast<std::byte>(value >> (8 * i)));
  }
}

/// All of its bytes are there.
template <std::unsigned_integral T>
T number_at(std::span<const std::byte> bytes, std::size_t at) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value | static_cast<T>(std::to_integer<T>(bytes[at + i]) << (8 * i)));
  }
  return value;
}

}  // namespace heddle::recover
