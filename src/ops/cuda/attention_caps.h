#pragma once

// Device code only: caps of scores, cap * tanh(score / cap), where kernels have no time to spare.
// Products of queries and keys are multiplied by kTanhUnit * scale / cap first: then those that are
// small beside the cap are those without the bit of 2 and above. Of small ones the tangent is a
// polynomial (off by 2e-5 of its value): a processor makes few exponentials at a time, and has its
// own to make.

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
