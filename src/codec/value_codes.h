#pragma once

#include <bit>
#include <cstdint>

#include "codec/inline.h"

// What single values become in bf16, int8, int4, fp8 and e3m0, and the scales of their blocks; for
// every backend, so that all of them write the same bytes.

namespace heddle::codec {

inline constexpr std::uint32_t kInfinityBits = 0x7f800000U;

/// Of an infinity or NaN they are kInfinityBits or more.
HEDDLE_CODEC_INLINE std::uint32_t magnitude_bits(float value) {
  return std::bit_cast<std::uint32_t>(value) & 0x7fffffffU;
}

/// The upper half of a float32, rounded to nearest even; what would round to infinity becomes the
/// largest finite value.
HEDDLE_CODEC_INLINE std::uint16_t bf16_bits(float value) {
  constexpr std::uint32_t kLargest = 0x7f7fU;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  const std::uint32_t rounded = (magnitude + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
  const std::uint32_t finite = rounded < kLargest ? rounded : kLargest;
  return static_cast<std::uint16_t>(finite | ((bits >> 16) & 0x8000U));
}

HEDDLE_CODEC_INLINE float from_bf16_bits(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// largest / most, from the bits of the largest magnitude: 0 for zeros, else not denormal (whose
/// inverse would be infinite), and never so large that most * scale overflows.
HEDDLE_CODEC_INLINE float block_scale(std::uint32_t largest_bits, float most) {
  if (largest_bits == 0) return 0.0F;
  constexpr float kSmallest = 0x1p-126F, kLargest = 0x1.fffffep127F;
  const float top = std::bit_cast<float>(std::bit_cast<std::uint32_t>(kLargest / most) - 1);
  const float scale = std::bit_cast<float>(largest_bits) / most;
  const float capped = scale < top ? scale : top;
  return capped > kSmallest ? capped : kSmallest;
}

/// What values of a block are divided by: anything where all are zero. Division, not a product with
/// the inverse: only so is a value below half a scale sure to become 0, and what is lost of it a
/// float (docs/design/033-codecs.md).
HEDDLE_CODEC_INLINE float divisor(float scale) { return scale > 0.0F ? scale : 1.0F; }

/// The nearest integer, ties to even, of magnitudes far below 2^22, kept within `most`.
HEDDLE_CODEC_INLINE std::int32_t nearest_code(float value, std::int32_t most) {
  constexpr float kShift = 0x1.8p23F;  // behind it the last bit of a float is worth 1
  const std::int32_t code =
      std::bit_cast<std::int32_t>(value + kShift) - std::bit_cast<std::int32_t>(kShift);
  const std::int32_t capped = code < most ? code : most;
  return capped > -most ? capped : -most;
}

/// Sign and the level nearest to |value|: 0 for zero, c for 2^(c - 7).
HEDDLE_CODEC_INLINE std::uint32_t e3m0_of(float value) {
  constexpr std::int32_t kLowest = 127 - 7;  // exponent bits of half the smallest level
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  // One more in the exponent from above 1.5 times a power of two on.
  const std::int32_t level = static_cast<std::int32_t>((magnitude + 0x3fffffU) >> 23) - kLowest;
  const std::int32_t at_least_one = level > 1 ? level : 1;
  const std::int32_t nearest =
      static_cast<std::int32_t>(magnitude) > (kLowest << 23) ? at_least_one : 0;
  const std::int32_t capped = nearest < 7 ? nearest : 7;
  return static_cast<std::uint32_t>(capped) | ((bits >> 28) & 8U);
}

HEDDLE_CODEC_INLINE float from_e3m0(std::uint32_t code) {
  const std::uint32_t level = code & 7U;
  const std::uint32_t magnitude = level == 0 ? 0 : (level + 120U) << 23;
  return std::bit_cast<float>(magnitude | ((code & 8U) << 28));
}

/// e4m3 of a value, 448 at most: rounded to nearest even.
HEDDLE_CODEC_INLINE std::uint8_t e4m3_of(float value) {
  constexpr float kDenormalShift = 0x1p14F;  // behind it the last bit of a float is worth 2^-9
  constexpr std::uint32_t kRebias = (127 - 7) << 3, kLargest = 0x7e;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  const std::uint32_t normal = ((magnitude + 0x7ffffU + ((magnitude >> 20) & 1U)) >> 20) - kRebias;
  const std::uint32_t denormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + kDenormalShift) -
      std::bit_cast<std::uint32_t>(kDenormalShift);
  const std::uint32_t code = magnitude < std::bit_cast<std::uint32_t>(0x1p-6F) ? denormal : normal;
  return static_cast<std::uint8_t>((code < kLargest ? code : kLargest) | ((bits >> 24) & 0x80U));
}

HEDDLE_CODEC_INLINE float from_e4m3(std::uint8_t code) {
  const std::uint32_t magnitude = code & 0x7fU;
  const float normal = std::bit_cast<float>((magnitude << 20) + ((127U - 7U) << 23));
  const float denormal = static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-9F;
  const float value = magnitude < 8 ? denormal : normal;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | ((code & 0x80U) << 24));
}

}  // namespace heddle::codec
