#pragma once

// Device code of Hopper: what matrix products on clusters of two blocks have in common. A block
// makes tiles of 128 x 256, summing 64 at a time, of a left factor's 128 and a right factor's 256
// rows or columns in one stage of shared memory. What both blocks of a cluster need each copies a
// half of, to both. One thread starts copies; two warpgroups multiply 64 rows each; three more
// warps may finish results that lie rounded in shared memory, while the next tile is multiplied.

#include "ops/cuda/hopper_tiles.h"

namespace heddle::ops::cuda::hopper::pair {

constexpr int kThreads = 384, kGroups = 2, kHelpers = 3, kStages = 3;
constexpr int kLeftBytes = 2 * kTileBytes, kStageBytes = kLeftBytes + 4 * kTileBytes;
constexpr int kResultBytes = 4 * kTileBytes;  // of a warpgroup, 64 x 256 of bf16
// Together what the block starts with: 3 x 168.
constexpr int kProducerRegisters = 136, kConsumerRegisters = 184;

/// A stage was filled, was read; a warpgroup's result is there, was taken.
template <int kOwnStages>
struct BarriersOf {
  std::uint64_t full[kOwnStages], empty[kOwnStages], made[kGroups], taken[kGroups];
};
using Barriers = BarriersOf<kStages>;

/// The block's shared memory, and what a kernel keeps behind all that.
struct Memory {
  unsigned char *stages, *results;
  Barriers& barriers;
  unsigned char* rest;
};
constexpr int kSharedBytes =
    1024 + kStages * kStageBytes + kGroups * kResultBytes + static_cast<int>(sizeof(Barriers));

/// Where the first stage can begin.
__device__ __forceinline__ unsigned char* aligned_stages(unsigned char* memory) {
  return reinterpret_cast<unsigned char*>((reinterpret_cast<std::uintptr_t>(memory) + 1023) &
                                          ~std::uintptr_t{1023});
}

__device__ __forceinline__ Memory divide(unsigned char* memory) {
  unsigned char* const stages = aligned_stages(memory);
  unsigned char* const results = stages + kStages * kStageBytes;
  unsigned char* const barriers = results + kGroups * kResultBytes;
  return {stages, results, *reinterpret_cast<Barriers*>(barriers), barriers + sizeof(Barriers)};
}

/// By one thread, before a barrier of the cluster.
template <int kOwnStages>
__device__ __forceinline__ void init(BarriersOf<kOwnStages>& barriers) {
  for (int i = 0; i < kOwnStages; ++i) {
    init_barrier(barriers.full + i, 1);
    init_barrier(barriers.empty + i, 2 * kGroups);  // a thread for each, of both blocks
  }
  for (int i = 0; i < kGroups; ++i) {
    init_barrier(barriers.made + i, 128);
    init_barrier(barriers.taken + i, 32 * kHelpers);
  }
  fence_barrier_init();
}

/// What the tiles of a cluster, 256 x 256, lie in. Bands of eight are walked column by column, so
/// that what the clusters read at a time stays in the cache.
struct Grid {
  int rows, columns;
  struct Place {
    int row, column;
  };
  __device__ Place find(int tile) const {
    constexpr int kBand = 8;
    const int band = tile / (kBand * columns), in_band = tile - band * kBand * columns;
    const int height = min(kBand, rows - band * kBand);
    return {band * kBand + in_band % height, in_band / height};
  }
};

/// What a warpgroup does beside its products, if anything.
struct NothingElse {
  /// Before a stage is multiplied.
  __device__ void prepare(int /*step*/, unsigned char* /*stage*/) const {}
  /// While the products of a step run.
  __device__ void meanwhile(int /*step*/) const {}
};

/// sums = a b for 64 rows of a tile; nothing where there are no steps. Of each factor rows lie in
/// shared memory (along the sum) or, transposed, columns.
template <int kTransposeA, int kTransposeB, int kOwnStages, class Else>
__device__ __forceinline__ void multiply(float (&sums)[128], unsigned char* stages,
                                         BarriersOf<kOwnStages>& barriers, Turn<kOwnStages>& at,
                                         int steps, int group, int thread, Else&& other) {
  int before = 0;
  for (int k = 0; k < steps; ++k) {
    wait_for(barriers.full + at.index, at.parity);
    unsigned char* const left = stages + at.index * kStageBytes;
    other.prepare(k, left);
    unsigned char *const own = left + group * kTileBytes, *const right = left + kLeftBytes;
    const std::uint64_t a = kTransposeA ? across_sum(own, kTileBytes) : along_sum(own);
    const std::uint64_t b = kTransposeB ? across_sum(right, kTileBytes) : along_sum(right);
    begin_products();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      multiply_add<kTransposeA, kTransposeB>(sums, a + i * (kTransposeA ? kNextRows : kNextInRow),
                                             b + i * (kTransposeB ? kNextRows : kNextInRow),
                                             k != 0 || i != 0);
    }
    end_product_group();
    wait_for_products<1>();
    if (k > 0 && thread < 2) arrive_in(barriers.empty + before, thread);
    other.meanwhile(k);
    before = at.index;
    at.advance();
  }
  wait_for_products<0>();
  if (steps > 0 && thread < 2) arrive_in(barriers.empty + before, thread);
}

/// Rounds 64 x 256 sums to blocks of 64 x 64.
__device__ __forceinline__ void round_sums(const float (&sums)[128], std::uint32_t result,
                                           int thread) {
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const float* const s = sums + 8 * i;
    const std::uint32_t m[4] = {pair_of(s[0], s[1]), pair_of(s[2], s[3]), pair_of(s[4], s[5]),
                                pair_of(s[6], s[7])};
    store_block(result + i / 4 * kTileBytes, thread / 32 * 16, i % 4, m);
  }
}

/// The v-th eight columns of row r of a result.
__device__ __forceinline__ uint4 load_result(std::uint32_t result, int r, int v) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(result + v / 8 * kTileBytes + r * 128 + ((v ^ r) % 8) * 16)
               : "memory");
  return x;
}

}  // namespace heddle::ops::cuda::hopper::pair
