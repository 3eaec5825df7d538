#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace heddle::codec::cpu {

// Numbers inside encoded bytes, which are aligned to nothing.

/// Number `index` of those at `from`.
template <class T>
T load(const std::byte* from, std::int64_t index = 0) {
  T value;
  std::memcpy(&value, from + index * static_cast<std::int64_t>(sizeof value), sizeof value);
  return value;
}

template <class T>
void store(T value, std::byte* to, std::int64_t index = 0) {
  std::memcpy(to + index * static_cast<std::int64_t>(sizeof value), &value, sizeof value);
}

}  // namespace heddle::codec::cpu
