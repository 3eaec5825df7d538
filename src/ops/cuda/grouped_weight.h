#pragma once

// Device code of Hopper: what only the gradients of experts' weights need (grouped_product.h).

#include "ops/cuda/grouped_tiles.h"

namespace heddle::ops::cuda::hopper::grouped {

/// Makes the rows of a stage from `rows` on 0, with both warpgroups: each its own columns of the
/// left factor and half of the right one.
__device__ __forceinline__ void clear_rows(unsigned char* stage, int rows, int group, int thread) {
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    unsigned char* const tile =
        i == 0 ? stage + group * kTileBytes : stage + kLeftBytes + (2 * group + i - 1) * kTileBytes;
    for (int at = rows * 128 + thread * 16; at < kTileBytes; at += 128 * 16) {
      *reinterpret_cast<uint4*>(tile + at) = uint4{0, 0, 0, 0};
    }
  }
  fence_shared_writes();
  sync_threads(1, 256);
}

// A warpgroup's 64 x 256 sums go to c_e right from registers: by way of shared memory, which would
// have room for half of them, warpgroups would wait for hardware copies to read the first half.

/// Calls store(place in c, four that follow each other).
template <class Store>
__device__ __forceinline__ void for_fours(const float (&sums)[128], const GroupedProduct& p,
                                          const Place& place, int row0, const Store& store) {
#pragma unroll
  for (int high = 0; high < 2; ++high) {
    const int row = row0 + lane_id() / 4 + 8 * high, column = place.column + first_of_four();
    float* const at =
        p.gradient.of + place.expert * p.gradient.expert_stride + row * p.gradient.stride + column;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int d = 8 * i + 2 * high;
      const float4 four = four_of(sums[d], sums[d + 1], sums[d + 4], sums[d + 5]);
      if (row < p.left && column + 16 * i < p.width) store(at + 16 * i, four);
    }
  }
}

__device__ __forceinline__ void store_weight(const float (&sums)[128], const GroupedProduct& p,
                                             const Place& place, int group, int thread) {
  const int row0 = place.row + 64 * group + thread / 32 * 16;
  // What rows before this part are for has their sums.
  if (p.gradient.adds || p.offsets[place.expert] < p.part.first) {
    for_fours(sums, p, place, row0, [](float* to, float4 x) { add_four(to, x); });
  } else {
    for_fours(sums, p, place, row0,
              [](float* to, float4 x) { *reinterpret_cast<float4*>(to) = x; });
  }
}

/// Clears what is behind the last row of a tile, before it is multiplied.
class ClearRows {
 public:
  __device__ ClearRows(int rows, int group, int thread)
      : rows_(rows), group_(group), thread_(thread) {}
  __device__ __forceinline__ void prepare(int step, unsigned char* stage) const {
    const int rows = rows_ - 64 * step;
    if (rows < 64) clear_rows(stage, rows, group_, thread_);
  }
  __device__ void meanwhile(int /*step*/) const {}

 private:
  int rows_, group_, thread_;
};

}  // namespace heddle::ops::cuda::hopper::grouped
