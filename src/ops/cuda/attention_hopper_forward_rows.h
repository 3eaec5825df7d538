#pragma once

// Device code only: what a warp does with its 16 rows of a tile of scores, which lie as products of
// a warpgroup leave them (hopper_instructions.h). A thread has two rows, lane / 4 and 8 more;
// scores[i] is of row i / 2 % 2 and key 8 (i / 4) + 2 (lane % 4) + i % 2.

#include "ops/cuda/attention_caps.h"
#include "ops/cuda/tensor_core_tiles.h"

namespace heddle::ops::cuda::hopper {

/// Exponentials of a row are relative to `reference`, a power of 2: the largest score of the first
/// tile. Later ones may be larger, because neither f32 nor bf16 loses digits by that; only before
/// they overflow the reference must grow. So the largest of a tile is seldom looked for: sums tell.
struct RunningSoftmax {
  float reference[2] = {kNothing, kNothing};
  float sum[2] = {};     // this lane's part
  float factor[2] = {};  // of take_largest(): what everything summed before is to be multiplied by

  static constexpr float kNothing = -1e30F;  // before a row's first key

  /// Scores become exponentials.
  template <int kN>
  __device__ __forceinline__ void add(float (&scores)[kN], float scale) {
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      const int r = i / 2 % 2;
      scores[i] = exp2_fast(fmaf(scores[i], scale, -reference[r]));
      sum[r] += scores[i];
    }
  }
  /// The same of products that SmallCap is for, which it returns the largest square of.
  template <int kN>
  __device__ __forceinline__ unsigned add_small(float (&products)[kN], const SmallCap& small) {
    // Left alone, the compiler adds up all of them behind the last exponential: the more registers
    // are in use the later. So exponentials wait for sums of those a while before.
    constexpr int kBehind = 8, kStep = 16;
    unsigned largest = 0;
    float own[2] = {reference[0], reference[1]};
#pragma unroll
    for (int i = 0; i < kN; i += 2) {
      const int r = i / 2 % 2;
      const float x = products[i] * products[i], y = products[i + 1] * products[i + 1];
      largest = SmallCap::larger(largest, x, y);
      products[i] = exp2_fast(small.exponent(products[i], x, own[r]));
      products[i + 1] = exp2_fast(small.exponent(products[i + 1], y, own[r]));
      if (i >= kBehind) {
        sum[r] += products[i - kBehind];
        sum[r] += products[i + 1 - kBehind];
      }
      if (i >= kBehind && i % kStep >= kStep - 4) own[r] = fmaf(0.0F, sum[r], own[r]);
    }
#pragma unroll
    for (int i = kN - kBehind; i < kN; ++i) sum[i / 2 % 2] += products[i];
    return largest;
  }
  /// Whether sums are too large to go on with this reference.
  __device__ __forceinline__ bool are_sums_too_large() const {
    constexpr float kLarge = 0x1p64F;
    return !(fmaxf(sum[0], sum[1]) < kLarge);
  }
  template <int kN>
  __device__ __forceinline__ void take_largest(const float (&scores)[kN], float scale) {
    float largest[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int i = 0; i < kN; ++i) largest[i / 2 % 2] = fmaxf(largest[i / 2 % 2], scores[i]);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      largest[r] = fmaxf(largest[r], __shfl_xor_sync(0xffffffffU, largest[r], 1));
      largest[r] = fmaxf(largest[r], __shfl_xor_sync(0xffffffffU, largest[r], 2));
      largest[r] = fmaxf(reference[r], largest[r] * scale);
      factor[r] = exp2_fast(reference[r] - largest[r]);
      reference[r] = largest[r];
      sum[r] *= factor[r];
    }
  }
};

/// Hides keys behind `last[r]`, counted from the thread's first.
template <int kN>
__device__ __forceinline__ void hide_behind(float (&scores)[kN], const int (&last)[2]) {
#pragma unroll
  for (int i = 0; i < kN; ++i) {
    if (8 * (i / 4) + i % 2 > last[i / 2 % 2]) scores[i] = -INFINITY;
  }
}
/// Of the first kSome scores.
template <int kSome, int kN>
__device__ __forceinline__ void hide_before(float (&scores)[kN], const int (&first)[2]) {
#pragma unroll
  for (int i = 0; i < kSome; ++i) {
    if (8 * (i / 4) + i % 2 < first[i / 2 % 2]) scores[i] = -INFINITY;
  }
}

/// As left factors of 16 keys each.
template <int kN, int kFactors>
__device__ __forceinline__ void round_to_weights(const float (&exponentials)[kN],
                                                 std::uint32_t (&weights)[kFactors][4]) {
#pragma unroll
  for (int i = 0; i < kN; i += 2) {
    weights[i / 8][i % 8 / 2] = pair_of(exponentials[i], exponentials[i + 1]);
  }
}

/// The warp's scores once more, by its own products: those of a warpgroup need all its warps. Rows
/// of 64 are swizzled; wider ones lie in blocks, those of q after 64 and those of k after kKeys.
template <int kWidth, int kKeys, int kN>
__device__ __forceinline__ void make_scores_again(float (&scores)[kN], const unsigned char* q,
                                                  const unsigned char* k) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane % 16;
#pragma unroll
  for (int i = 0; i < kN; ++i) scores[i] = 0.0F;
#pragma unroll 1
  for (int step = 0; step < kWidth / 16; ++step) {
    const int block = step / 4, chunk = step % 4 * 2;
    std::uint32_t a[4];
    load_matrices(
        a, shared_address(q) + block * 8192 + row * 128 + ((chunk + lane / 16) ^ (row % 8)) * 16);
#pragma unroll
    for (int n = 0; n < kN / 4; n += 2) {
      const int key = 8 * n + lane / 16 * 8 + lane % 8;
      std::uint32_t b[4];
      load_matrices(b, shared_address(k) + block * kKeys * 128 + key * 128 +
                           ((chunk + lane / 8 % 2) ^ (key % 8)) * 16);
      ops::cuda::multiply_add(reinterpret_cast<float(&)[4]>(scores[4 * n]), a, b[0], b[1]);
      ops::cuda::multiply_add(reinterpret_cast<float(&)[4]>(scores[4 * n + 4]), a, b[2], b[3]);
    }
  }
}

}  // namespace heddle::ops::cuda::hopper
