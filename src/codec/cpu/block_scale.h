#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

namespace heddle::codec::cpu {

/// largest / most, from the bits of the largest magnitude: 0 for zeros, else not denormal (whose
/// inverse would be infinite), and never so large that most * scale overflows.
inline float block_scale(std::uint32_t largest_bits, float most) {
  if (largest_bits == 0) return 0.0F;
  using Limits = std::numeric_limits<float>;
  const float top = std::bit_cast<float>(std::bit_cast<std::uint32_t>(Limits::max() / most) - 1);
  return std::clamp(std::bit_cast<float>(largest_bits) / most, Limits::min(), top);
}

/// What values of a block are divided by: anything where all are zero.
inline float divisor(float scale) { return scale > 0.0F ? scale : 1.0F; }

}  // namespace heddle::codec::cpu
