#pragma once

// Device code only: caps of scores, cap * tanh(score / cap), where kernels have no time to spare.
// Products of queries and keys are multiplied by kTanhUnit * scale / cap first: then those that are
// small beside the cap are those without the bit of 2 and above. Of small ones the tangent is a
// polynomial (off by 2e-5 of its value): a processor makes few exponentials at a time, and has its
// own to make. Of scores below a quarter of the cap, as nearly all are, one of two terms will do,
// and products need not be multiplied: SmallCap. Whether they are so small is asked behind it.

#include "ops/cuda/tensor_core_tiles.h"

namespace heddle::ops::cuda {

inline constexpr float kTanhUnit = 4.0F;  // small: below half of the cap

/// Of a product so multiplied, over it; goes to infinity as that does.
__device__ __forceinline__ float small_tanh_ratio(float x, float scale) {
  const float square = x * x;
  const float ratio = fmaf(1.1250953684793785e-4F * scale, square, -5.182679742574692e-3F * scale);
  return fmaf(ratio, square, 0.24999435245990753F * scale);
}

/// Of any; off by some 1e-7.
__device__ __forceinline__ float tanh_of(float x) {
  return 1.0F - __fdividef(2.0F, 1.0F + exp2_fast(x * (2.0F * kLog2E / kTanhUnit)));
}

/// What becomes of products whose score is below a quarter of the cap.
struct SmallCap {
  float linear = 0.0F, cubic = 0.0F;  // of the product, to the capped score in powers of 2
  float limit = 0.0F;                 // of the square of products
  std::uint32_t slope = 0;            // minus what a square takes from the slope of 1, twice

  SmallCap() = default;
  SmallCap(float scale, float cap) {
    // tanh(x) for x up to 1/4 is off by 8e-6, its slope by 5e-4.
    constexpr float kLinear = 0.99984343F, kCubic = -0.32319898F, kSlope = -0.96548F;
    const float part = scale / cap;
    linear = kLinear * scale * kLog2E;
    cubic = kCubic * scale * kLog2E * part * part;
    limit = 0.0625F / (part * part);
    const auto half =
        static_cast<std::uint32_t>(__bfloat16_as_ushort(__float2bfloat16_rn(kSlope * part * part)));
    slope = half << 16 | half;
  }
  /// The larger of `largest` and the squares, as bits: of numbers that are not negative they are
  /// ordered as these are, and what is no number comes last.
  __device__ static unsigned larger(unsigned largest, float square, float other) {
    return __vimax3_u32(largest, __float_as_uint(square), __float_as_uint(other));
  }
  __device__ bool holds(unsigned largest) const { return largest < __float_as_uint(limit); }
  __device__ float exponent(float product, float square, float reference) const {
    return fmaf(product, fmaf(cubic, square, linear), -reference);
  }
};

/// Whether all of the warp's products are such.
template <int kN>
__device__ __forceinline__ bool are_all_small(const float (&products)[kN], const SmallCap& small) {
  float largest = 0.0F;
#pragma unroll
  for (int i = 0; i < kN; ++i) largest = fmaxf(largest, fabsf(products[i]));
  return __all_sync(0xffffffffU, largest * largest < small.limit);
}

/// Multiplies products; returns whether all of the warp's are small.
template <int kN>
__device__ __forceinline__ bool multiply_all(float (&products)[kN], float factor) {
  constexpr unsigned kFromTwo = 0x40000000U;  // also of what is no number
  unsigned bits = 0;
#pragma unroll
  for (int i = 0; i < kN; ++i) {
    products[i] *= factor;
    bits |= __float_as_uint(products[i]);
  }
  return !__any_sync(0xffffffffU, (bits & kFromTwo) != 0);
}

/// Then makes tanh(score / cap) of them.
template <int kN>
__device__ __forceinline__ void bend(float (&products)[kN], bool are_small) {
  if (are_small) {
#pragma unroll
    for (int i = 0; i < kN; ++i) products[i] *= small_tanh_ratio(products[i], 1.0F);
  } else {
#pragma unroll
    for (int i = 0; i < kN; ++i) products[i] = tanh_of(products[i]);
  }
}

}  // namespace heddle::ops::cuda
