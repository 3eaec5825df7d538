#pragma once

// Device code of Hopper: products of the rows of experts with the experts' matrices. Rows are
// sorted by expert, and only the device knows where those of each begin: every block reads that
// first.
//
// - forward: c's rows = a's rows times b_e^T; input: times b_e. Where an expert's rows end within
//   256, a cluster makes 128 x 512 in place of 256 x 256, and shares the left factor in place of
//   the right one. The rows behind, which are of the next expert, are multiplied too and not
//   written.
// - weight: c_e = or += a_e^T b_e, f32. The sum is over rows, so those behind the last are made 0
//   in shared memory, of both factors: they might be no numbers. Experts with more rows come
//   first, and rounds of tiles go forth and back, so that all clusters end together. Rows may be a
//   part of all.
// - gated: forward into [gate | up], 128 columns of each in a tile, and y = silu(gate) * up.
// - gated_input: input, of which and of gate and up come their gradients.

#include "ops/cuda/grouped_gradients.h"
#include "ops/cuda/grouped_weight.h"

namespace heddle::ops::cuda::hopper {
namespace grouped {

/// Stages of factors in shared memory: weights' results do not pass through it.
template <Grouped kWhat>
constexpr int kStages = kWhat == Grouped::weight ? 4 : pair::kStages;

/// The block's shared memory.
template <Grouped kWhat>
struct Memory {
  unsigned char *stages, *results, *ring;  ///< the ring is WriteGradients'
  BarriersOf<kStages<kWhat>>& barriers;
  Table<kWhat>& table;

  static constexpr int kResults = kWhat == Grouped::weight ? 0 : kGroups * kResultBytes,
                       kRing = kWhat == Grouped::gated_input ? WriteGradients::kRingBytes : 0;
  static constexpr int kBytes =
      1024 + kStages<kWhat> * kStageBytes + kResults + kRing +
      static_cast<int>(sizeof(BarriersOf<kStages<kWhat>>) + sizeof(Table<kWhat>));
};

template <Grouped kWhat>
__device__ __forceinline__ Memory<kWhat> divide(unsigned char* bytes) {
  using Of = Memory<kWhat>;
  unsigned char* const stages = aligned_stages(bytes);
  unsigned char* const results = stages + kStages<kWhat> * kStageBytes;
  unsigned char* const ring = results + Of::kResults;
  unsigned char* const barriers = ring + Of::kRing;
  unsigned char* const table = barriers + sizeof(BarriersOf<kStages<kWhat>>);
  return {stages, results, ring, *reinterpret_cast<BarriersOf<kStages<kWhat>>*>(barriers),
          *reinterpret_cast<Table<kWhat>*>(table)};
}

/// Starts copies of the left factor to a stage, from `k` on of what is summed over.
template <Grouped kWhat>
__device__ __forceinline__ void copy_left(unsigned char* left, std::uint64_t* full,
                                          const CUtensorMap& map, const Place& place, int k,
                                          int rank) {
  if (kWhat != Grouped::weight && place.shares_left) {
    return start_shared_box(left + rank * kTileBytes, map, full, k, place.row + 64 * rank, 0, 0);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    unsigned char* const to = left + i * kTileBytes;
    if constexpr (kWhat == Grouped::weight) {
      start_box(to, map, full, place.row + 64 * i, place.begin + k, 0, 0);
    } else {
      start_box(to, map, full, k, place.row + 64 * i, 0, 0);
    }
  }
}

/// The same of the right factor, in boxes of kWide columns of c.
template <Grouped kWhat>
__device__ __forceinline__ void copy_right(unsigned char* right, std::uint64_t* full,
                                           const CUtensorMap& map, const GroupedProduct& p,
                                           const Place& place, int k, int rank) {
  constexpr int kWide = kIsAlong<kWhat> ? 128 : 64, kBoxes = 256 / kWide;
  const auto start = [&](int box, bool is_shared) {
    unsigned char* const to = right + box * (kWide * 128);
    const int column = place.column + box * (kWhat == Grouped::gated ? p.width : kWide);
    const int c0 = kIsAlong<kWhat> ? k : column;
    const int c1 = kIsAlong<kWhat> ? column : kWhat == Grouped::weight ? place.begin + k : k;
    const int c2 = kWhat == Grouped::weight ? 0 : place.expert;
    if (is_shared) {
      start_shared_box(to, map, full, c0, c1, c2, 0);
    } else {
      start_box(to, map, full, c0, c1, c2, 0);
    }
  };
  if (kWhat != Grouped::weight && place.shares_left) {
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) start(box, false);
  } else {
#pragma unroll
    for (int box = 0; box < kBoxes / 2; ++box) start(rank * (kBoxes / 2) + box, true);
  }
}

template <Grouped kWhat>
__device__ void copy_in(const Memory<kWhat>& memory, const GroupedMaps& maps,
                        const GroupedProduct& p) {
  const int rank = block_in_cluster();
  Tiles<kWhat> tiles(p, memory.table);
  Turn<kStages<kWhat>> at{.index = 0, .parity = 1};
  for (Place place; tiles.next(place);) {
    const int steps = steps_of<kWhat>(p, place);
    for (int k = 0; k < steps; ++k, at.advance()) {
      std::uint64_t* const full = memory.barriers.full + at.index;
      unsigned char* const stage = memory.stages + at.index * kStageBytes;
      wait_for(memory.barriers.empty + at.index, at.parity);
      arrive_and_expect(full, kStageBytes);
      copy_left<kWhat>(stage, full, maps.a, place, 64 * k, rank);
      copy_right<kWhat>(stage + kLeftBytes, full, maps.b, p, place, 64 * k, rank);
    }
  }
}

template <Grouped kWhat>
__device__ __forceinline__ auto finish_of(const Memory<kWhat>& memory, const GroupedProduct& p) {
  if constexpr (kWhat == Grouped::gated) {
    return WriteGated(p);
  } else if constexpr (kWhat == Grouped::gated_input) {
    return WriteGradients(p, memory.ring);
  } else {
    return WriteRows(p);
  }
}

template <Grouped kWhat>
__device__ __forceinline__ void make_tiles(const Memory<kWhat>& memory, const GroupedProduct& p) {
  const int group = uniform(static_cast<int>(threadIdx.x) / 128) - 1;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  Tiles<kWhat> tiles(p, memory.table);
  Turn<kStages<kWhat>> at;
  float sums[128];
  if constexpr (kWhat == Grouped::weight) {
    for (Place place; tiles.next(place);) {
      const int steps = steps_of<kWhat>(p, place);
      multiply<1, 1>(sums, memory.stages, memory.barriers, at, steps, group, thread,
                     ClearRows(place.end - place.begin, group, thread));
      if (steps == 0) {
#pragma unroll
        for (float& sum : sums) sum = 0.0F;
      }
      store_weight(sums, p, place, group, thread);
    }
  } else {
    Results results(finish_of<kWhat>(memory, p), memory.results + group * kResultBytes, group,
                    thread);
    const int steps = (p.left + 63) / 64;
    for (Place place; tiles.next(place);) {
      results.expect(steps);
      multiply<0, !kIsAlong<kWhat>>(sums, memory.stages, memory.barriers, at, steps, group, thread,
                                    results);
      results.take(sums, place);
    }
    results.finish();
  }
}

// Together what the block starts with, 3 x 168: no warps help, so those that multiply have more.
constexpr int kLoneProducerRegisters = 56, kLoneConsumerRegisters = 224;

}  // namespace grouped

template <Grouped kWhat>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(pair::kThreads, 1)
    grouped_product(const __grid_constant__ GroupedMaps maps,
                    const __grid_constant__ GroupedProduct p) {
  using namespace grouped;
  extern __shared__ unsigned char bytes[];
  const auto memory = grouped::divide<kWhat>(bytes);
  if (threadIdx.x == 0) init(memory.barriers);
  fill<kWhat>(memory.table, p);
  sync_cluster();
  if (threadIdx.x >= 128) {
    take_registers<kLoneConsumerRegisters>();
    make_tiles<kWhat>(memory, p);
  } else {
    give_registers<kLoneProducerRegisters>();
    if (threadIdx.x == 0) copy_in<kWhat>(memory, maps, p);
  }
  sync_cluster();  // the other block may still copy to this one or arrive at its barriers
}

}  // namespace heddle::ops::cuda::hopper
