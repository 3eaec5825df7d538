#pragma once

#include <bit>
#include <cstdint>

namespace heddle::codec::cpu {

/// The upper half of a float32, rounded to nearest even; what would round to infinity becomes the
/// largest finite value.
inline std::uint16_t bf16_bits(float value) {
  constexpr std::uint32_t kLargest = 0x7f7fU;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  const std::uint32_t rounded = (magnitude + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const std::uint32_t finite = rounded < kLargest ? rounded : kLargest;
  return static_cast<std::uint16_t>(finite | ((bits >> 16) & 0x8000U));
}

inline float from_bf16_bits(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

}  // namespace heddle::codec::cpu
