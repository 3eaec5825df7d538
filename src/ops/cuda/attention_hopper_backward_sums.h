#pragma once

// Device code only, of Hopper. Sums of dq that come from many blocks in any order, and yet to the
// same bits every time: of terms that are multiples of one quantum, small enough for no sum to
// need more than 24 bits, every sum is exact.
//
// A term is taken apart into two such multiples, which are added apart. A split is 3 E, where E is
// a power of two that no term nor any sum of terms exceeds: what is added to it and has it taken
// away again is rounded to multiples of E 2^-22. What that leaves is not more than E 2^-23, and N
// of it are added up, a power of two that is not less than the tiles of keys; it is rounded to
// multiples of N E 2^-46. Together this is finer than f32 for all terms that matter in the sum.

#include "ops/cuda/attention_hopper_backward_jobs.h"

namespace heddle::ops::cuda::hopper {

/// Rounds to multiples of an ulp of `split`.
__device__ __forceinline__ float4 rounded_by(float split, float4 x) {
  return {__fadd_rn(x.x, split) - split, __fadd_rn(x.y, split) - split,
          __fadd_rn(x.z, split) - split, __fadd_rn(x.w, split) - split};
}

/// From the sums of a tile of queries to the next one's.
template <int kWidth, bool kExact>
constexpr int kTileSums = (kExact ? 2 : 1) * kQueryTile* kWidth;

/// Adds a warpgroup's 64 x 64 of a tile. `rest` is the second split by the first.
template <int kWidth, bool kExact>
__device__ __forceinline__ void add_to_sums(float* to, const float (&sums)[32], float split,
                                            float rest) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float4 x{sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]};
    if constexpr (!kExact) {
      add_four(to + 512 * i, x);
    } else {
      const float4 high = rounded_by(split, x);
      add_four(to + 512 * i, high);
      const float4 left{x.x - high.x, x.y - high.y, x.z - high.z, x.w - high.w};
      add_four(to + kQueryTile * kWidth + 512 * i, rounded_by(split * rest, left));
    }
  }
}

/// By what terms of dq are split that no sum of exceeds `bound`.
__device__ __forceinline__ float split_of(float bound) {
  return 3.0F * __uint_as_float((__float_as_uint(bound) & 0x7f800000U) + 0x00800000U);
}

/// The same for what is left by so many tiles of keys, by the first: 2^-24 times a power of two.
__host__ __device__ inline float rest_of_split(int key_tiles) {
  float rest = 0x1p-23F;
  for (int tiles = 2; tiles < key_tiles; tiles *= 2) rest *= 2.0F;
  return rest;
}

}  // namespace heddle::ops::cuda::hopper
