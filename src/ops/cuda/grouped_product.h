#pragma once

// Device code of Hopper: products of the rows of experts with the experts' matrices. Rows are
// sorted by expert, and only the device knows where those of each begin: every block reads that
// first.
//
// - forward: c's rows = a's rows times b_e^T; input: times b_e. Where an expert's rows end within
//   256, a cluster makes 128 x 512 in place of 256 x 256, and shares the left factor in place of
//   the right one. The rows behind, which are of the next expert, are multiplied too and not
//   written.
// - weight: c_e = or += a_e^T b_e, f32, by hardware copies. The sum is over rows, so those behind
//   the last are made 0 in shared memory, of both factors: they might be no numbers. Experts with
//   more rows come first, and rounds of tiles go forth and back, so that all clusters end together.
// - gated: forward into [gate | up], 128 columns of each in a tile, and y = silu(gate) * up. The
//   gradients of gate and up do not come of input's tiles in the same way: an expert's sums are too
//   short to hide what is read for them.

#include <cuda_bf16.h>

#include "ops/cuda/gated_product.h"

namespace heddle::ops::cuda::hopper {

enum class Grouped { forward, input, weight, gated };

struct GroupedMaps {
  CUtensorMap a;  ///< [rows, left], boxes of 64 x 64
  /// forward: [experts, width, summed] (gated: twice the width), boxes of 128 x 64; input:
  /// [experts, summed, width], boxes of 64 x 64; weight: [rows, width], boxes of 64 x 64
  CUtensorMap b;
  CUtensorMap c;  ///< weight: [experts, left, width], boxes of 64 x 32
};

struct GroupedProduct {
  const std::int32_t* offsets;  ///< where experts' rows begin, and where the last ones end
  int experts;
  int left;   ///< columns of a: what is summed over or, for weights, c's rows
  int width;  ///< columns of c; gated: of y
  bool adds;  ///< for weights: to c
  __nv_bfloat16* c;
  std::int64_t stride;
  GatedProduct gated;  ///< gated: all but its rows
};

namespace grouped {

using namespace pair;

constexpr int kMostExperts = 1024;

/// Whether the right factor is transposed, as it is in forward.
template <Grouped kWhat>
constexpr bool kIsAlong = kWhat == Grouped::forward || kWhat == Grouped::gated;

/// Of experts, in shared memory: where rows begin; the experts in the order in which their tiles
/// come; and where these begin, in tiles of a cluster.
struct Table {
  int offsets[kMostExperts + 1], order[kMostExperts], starts[kMostExperts + 1];
  __device__ int rows(int expert) const { return offsets[expert + 1] - offsets[expert]; }
};

/// What a block has of a tile of its cluster.
struct Place {
  int expert, begin, end;  ///< and its rows
  int row, column;         ///< where the block's part begins: in all rows, or in c_e
  bool shares_left;        ///< the blocks lie beside each other, not one above the other
};

template <Grouped kWhat>
class Tiles {
 public:
  __device__ Tiles(const GroupedProduct& p, const Table& table) : p_(p), table_(table) {}

  /// Of an expert.
  __device__ int count(int rows) const {
    const int columns = grid_columns();
    if constexpr (kWhat == Grouped::weight) {
      return rows == 0 && p_.adds ? 0 : (p_.left + 255) / 256 * columns;
    }
    return high(rows) * columns + (has_low(rows) ? (columns + 1) / 2 : 0);
  }

  __device__ bool next(Place& place) {
    const int clusters = static_cast<int>(gridDim.x) / 2, own = static_cast<int>(blockIdx.x) / 2;
    const int tile = round_ * clusters + (round_ % 2 == 0 ? own : clusters - 1 - own);
    if (tile >= table_.starts[p_.experts]) return false;
    while (tile >= table_.starts[at_ + 1]) ++at_;
    ++round_;
    const int expert = table_.order[at_], in_expert = tile - table_.starts[at_];
    place = find(expert, in_expert);
    return true;
  }

 private:
  /// Tiles above each other of 256 rows; and whether one of 128 is left.
  __device__ static int high(int rows) { return rows / 256 + (rows % 256 > 128 ? 1 : 0); }
  __device__ static bool has_low(int rows) { return rows % 256 > 0 && rows % 256 <= 128; }

  __device__ Place find(int expert, int tile) const {
    const int begin = table_.offsets[expert], end = table_.offsets[expert + 1];
    const int rank = block_in_cluster(), columns = grid_columns();
    constexpr bool kIsWeight = kWhat == Grouped::weight;
    const Grid grid{kIsWeight ? (p_.left + 255) / 256 : high(end - begin), columns};
    const int first = kIsWeight ? 0 : begin, of_grid = grid.rows * columns;
    if (tile >= of_grid) {
      return {expert, begin, end, first + grid.rows * 256, (2 * (tile - of_grid) + rank) * kColumns,
              true};
    }
    const auto [row, column] = grid.find(tile);
    return {expert, begin, end, first + row * 256 + rank * 128, column * kColumns, false};
  }

  /// Columns of c, or of gate and of up, in a block's tile.
  static constexpr int kColumns = kWhat == Grouped::gated ? 128 : 256;
  __device__ int grid_columns() const { return (p_.width + kColumns - 1) / kColumns; }

  const GroupedProduct& p_;
  const Table& table_;
  int round_ = 0, at_ = 0;
};

/// By all threads of the block; a barrier has to follow.
template <Grouped kWhat>
__device__ void fill(Table& table, const GroupedProduct& p) {
  for (int e = static_cast<int>(threadIdx.x); e <= p.experts; e += kThreads) {
    table.offsets[e] = p.offsets[e];
  }
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < p.experts; e += kThreads) {
    int before = e;
    if constexpr (kWhat == Grouped::weight) {
      before = 0;
      const int rows = table.rows(e);
      for (int other = 0; other < p.experts; ++other) {
        const int others = table.rows(other);
        before += others > rows || (others == rows && other < e) ? 1 : 0;
      }
    }
    table.order[before] = e;
  }
  __syncthreads();
  if (threadIdx.x >= 32) return;
  const Tiles<kWhat> tiles(p, table);
  const int lane = lane_id();
  int sum = 0;
  for (int first = 0; first < p.experts; first += 32) {
    const int at = first + lane;
    int tiles_to = at < p.experts ? tiles.count(table.rows(table.order[at])) : 0;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int left = __shfl_up_sync(0xffffffffU, tiles_to, distance);
      if (lane >= distance) tiles_to += left;
    }
    if (at < p.experts) table.starts[at + 1] = sum + tiles_to;
    sum += __shfl_sync(0xffffffffU, tiles_to, 31);
  }
  if (lane == 0) table.starts[0] = 0;
}

template <Grouped kWhat>
__device__ int steps_of(const GroupedProduct& p, const Place& place) {
  return ((kWhat == Grouped::weight ? place.end - place.begin : p.left) + 63) / 64;
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
__device__ void copy_in(unsigned char* stages, Barriers& barriers, const Table& table,
                        const GroupedMaps& maps, const GroupedProduct& p) {
  const int rank = block_in_cluster();
  Tiles<kWhat> tiles(p, table);
  Turn<kStages> at{.index = 0, .parity = 1};
  for (Place place; tiles.next(place);) {
    const int steps = steps_of<kWhat>(p, place);
    for (int k = 0; k < steps; ++k, at.advance()) {
      std::uint64_t* const full = barriers.full + at.index;
      unsigned char* const stage = stages + at.index * kStageBytes;
      wait_for(barriers.empty + at.index, at.parity);
      arrive_and_expect(full, kStageBytes);
      copy_left<kWhat>(stage, full, maps.a, place, 64 * k, rank);
      copy_right<kWhat>(stage + kLeftBytes, full, maps.b, p, place, 64 * k, rank);
    }
  }
}

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

/// Columns [128 kHalf, 128 kHalf + 128) of a warpgroup's sums to four blocks of 64 x 32.
template <int kHalf>
__device__ __forceinline__ void put_half(const float (&sums)[128], unsigned char* to, int thread) {
  const int lane = thread % 32;
  // Neighbouring rows take the 16 columns of a pair in turns, so that they meet other banks.
  const bool is_odd = lane / 4 % 2 == 1;
#pragma unroll
  for (int high = 0; high < 2; ++high) {
    const int row = thread / 32 * 16 + lane / 4 + 8 * high;
#pragma unroll
    for (int block = 0; block < 4; ++block) {
      float4 of[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int d = 64 * kHalf + 16 * block + 8 * i + 2 * high;
        of[i] = four_of(sums[d], sums[d + 1], sums[d + 4], sums[d + 5]);
      }
      unsigned char* const at = to + block * kTileBytes + row * 128;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const bool second = is_odd ? i == 0 : i == 1;
        const int chunk = (second ? 4 : 0) + first_of_four() / 4;
        *reinterpret_cast<float4*>(at + (chunk ^ row % 8) * 16) = second ? of[1] : of[0];
      }
    }
  }
}

/// A warpgroup's 64 x 256 sums to c_e, half of the columns after the other: there is room for one.
__device__ __forceinline__ void store_weight(const float (&sums)[128], unsigned char* result,
                                             const CUtensorMap& map, const GroupedProduct& p,
                                             const Place& place, int group, int thread) {
  const auto start = [&](int half) {
    fence_shared_writes();
    sync_threads(2 + group, 128);
    if (thread != 0) return;
    for (int block = 0; block < 4; ++block) {
      unsigned char* const from = result + block * kTileBytes;
      const int column = place.column + 128 * half + 32 * block, row = place.row + 64 * group;
      if (p.adds) {
        add_box(map, from, column, row, place.expert, 0);
      } else {
        store_box(map, from, column, row, place.expert, 0);
      }
    }
    end_store_group();
  };
  const auto wait = [&] {
    if (thread == 0) wait_for_stores<0>();
    sync_threads(2 + group, 128);
  };
  wait();
  put_half<0>(sums, result, thread);
  start(0);
  wait();
  put_half<1>(sums, result, thread);
  start(1);
}

template <Grouped kWhat>
__device__ __forceinline__ void make_tiles(unsigned char* stages, unsigned char* results,
                                           Barriers& barriers, const Table& table,
                                           const GroupedMaps& maps, const GroupedProduct& p) {
  const int group = uniform(static_cast<int>(threadIdx.x) / 128) - 1;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  unsigned char* const result = results + group * kResultBytes;
  Tiles<kWhat> tiles(p, table);
  Turn<kStages> at;
  std::uint32_t taken = 1;
  float sums[128];
  for (Place place; tiles.next(place); taken ^= 1) {
    const int steps = steps_of<kWhat>(p, place);
    if constexpr (kWhat == Grouped::weight) {
      const int rows = place.end - place.begin;
      multiply<1, 1>(sums, stages, barriers, at, steps, group, thread,
                     [&](int k, unsigned char* stage) {
                       if (rows - 64 * k < 64) clear_rows(stage, rows - 64 * k, group, thread);
                     });
      if (steps == 0) {
#pragma unroll
        for (float& sum : sums) sum = 0.0F;
      }
      store_weight(sums, result, maps.c, p, place, group, thread);
    } else {
      multiply<0, !kIsAlong<kWhat>>(sums, stages, barriers, at, steps, group, thread,
                                    [](int, unsigned char*) {});
      wait_for(barriers.taken + group, taken);
      round_sums(sums, shared_address(result), thread);
      arrive(barriers.made + group);
    }
  }
  if (kWhat == Grouped::weight && thread == 0) wait_for_stores<0>();
}

/// Writes a warpgroup's result to c: a warp has a row at a time.
__device__ __forceinline__ void write_rows(std::uint32_t result, const GroupedProduct& p,
                                           const Place& place, int row, int helper, int lane) {
  const int column = place.column + 8 * lane;
  const int rows = column < p.width ? min(64, place.end - row) : 0;
#pragma unroll 4
  for (int r = helper; r < rows; r += kHelpers) {
    *reinterpret_cast<uint4*>(p.c + (row + r) * p.stride + column) = load_result(result, r, lane);
  }
}

/// Finishes results of warpgroups.
template <Grouped kWhat>
__device__ void help(std::uint32_t results, Barriers& barriers, const Table& table,
                     const GroupedProduct& p) {
  const int helper = warp_id() - 1, lane = lane_id();
  Tiles<kWhat> tiles(p, table);
  std::uint32_t made = 0;
  for (Place place; tiles.next(place); made ^= 1) {
    GatedProduct gated = p.gated;
    gated.rows = place.end;
    for (int group = 0; group < kGroups; ++group) {
      const int row = place.row + 64 * group;
      const std::uint32_t result = results + group * kResultBytes;
      wait_for(barriers.made + group, made);
      if constexpr (kWhat == Grouped::gated) {
        gated::finish_forward(result, gated, row, place.column, helper, lane);
      } else {
        write_rows(result, p, place, row, helper, lane);
      }
      arrive(barriers.taken + group);
    }
  }
}

constexpr int kSharedBytes = pair::kSharedBytes + static_cast<int>(sizeof(Table));

}  // namespace grouped

template <Grouped kWhat>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(pair::kThreads, 1)
    grouped_product(const __grid_constant__ GroupedMaps maps,
                    const __grid_constant__ GroupedProduct p) {
  using namespace grouped;
  extern __shared__ unsigned char memory[];
  const auto [stages, results, barriers, rest] = divide(memory);
  Table& table = *reinterpret_cast<Table*>(rest);
  if (threadIdx.x == 0) init(barriers);
  fill<kWhat>(table, p);
  sync_cluster();
  if (threadIdx.x >= 128) {
    take_registers<kConsumerRegisters>();
    make_tiles<kWhat>(stages, results, barriers, table, maps, p);
  } else {
    give_registers<kProducerRegisters>();
    if (threadIdx.x == 0) {
      copy_in<kWhat>(stages, barriers, table, maps, p);
    } else if (kWhat != Grouped::weight && threadIdx.x >= 32) {
      help<kWhat>(shared_address(results), barriers, table, p);
    }
  }
  sync_cluster();  // the other block may still copy to this one or arrive at its barriers
}

}  // namespace heddle::ops::cuda::hopper
