#pragma once

// Device code of Hopper: what the tiles of a product of experts' rows are (grouped_product.h), and
// in which order the clusters of a kernel make them.

#include <cuda_bf16.h>

#include "ops/cuda/gated_product.h"

namespace heddle::ops::cuda::hopper {

enum class Grouped { forward, input, weight, gated, gated_input };

struct GroupedMaps {
  CUtensorMap a;  ///< [rows, left], boxes of 64 x 64
  /// forward: [experts, width, summed] (gated: twice the width), boxes of 128 x 64; input:
  /// [experts, summed, width], boxes of 64 x 64; weight: [rows, width], boxes of 64 x 64
  CUtensorMap b;
};

/// gated_input: weights of rows, and what a row's products of gradients and results sum up to in
/// every 256 columns, [rows, columns of tiles].
struct WeighedRows {
  const float* weights;
  float* dots;
};

/// weight: [experts, left, width].
struct Gradient {
  float* of;
  std::int64_t expert_stride, stride;
  bool adds;  ///< to what is there
};

/// weight: the rows that a and b have, of those that offsets are of.
struct Part {
  int first, rows;
};

struct GroupedProduct {
  const std::int32_t* offsets;  ///< where experts' rows begin, and where the last ones end
  int experts;
  int left;   ///< columns of a: what is summed over or, for weights, c's rows
  int width;  ///< columns of c; gated: of y
  __nv_bfloat16* c;
  std::int64_t stride;
  Part part;
  Gradient gradient;   ///< weight's c
  GatedProduct gated;  ///< gated and gated_input: all but its rows
  WeighedRows weighed;
};

namespace grouped {

using namespace pair;

/// Where gradients of gate and up are made shared memory has room for no more.
template <Grouped kWhat>
constexpr int kMostExperts = kWhat == Grouped::gated_input ? 128 : 1024;

/// Whether the right factor is transposed, as it is in forward.
template <Grouped kWhat>
constexpr bool kIsAlong = kWhat == Grouped::forward || kWhat == Grouped::gated;

/// Of experts, in shared memory: where rows begin; the experts in the order in which their tiles
/// come; and where these begin, in tiles of a cluster.
template <Grouped kWhat>
struct Table {
  int offsets[kMostExperts<kWhat> + 1], order[kMostExperts<kWhat>], starts[kMostExperts<kWhat> + 1];
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
  __device__ Tiles(const GroupedProduct& p, const Table<kWhat>& table) : p_(p), table_(table) {}

  __device__ int count(int expert) const {
    const int columns = grid_columns(), rows = table_.rows(expert);
    if constexpr (kWhat == Grouped::weight) {
      return rows == 0 && !is_cleared(expert) ? 0 : (p_.left + 255) / 256 * columns;
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
  /// weight: of an expert that has no rows here.
  __device__ bool is_cleared(int expert) const {
    return !p_.gradient.adds && p_.part.first == 0 && p_.offsets[expert] == p_.offsets[expert + 1];
  }
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
  const Table<kWhat>& table_;
  int round_ = 0, at_ = 0;
};

/// By all threads of the block; a barrier has to follow.
template <Grouped kWhat>
__device__ void fill(Table<kWhat>& table, const GroupedProduct& p) {
  for (int e = static_cast<int>(threadIdx.x); e <= p.experts; e += kThreads) {
    table.offsets[e] = kWhat == Grouped::weight
                           ? min(max(p.offsets[e] - p.part.first, 0), p.part.rows)
                           : p.offsets[e];
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
    int tiles_to = at < p.experts ? tiles.count(table.order[at]) : 0;
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

/// Of 64 each, that a tile is summed over.
template <Grouped kWhat>
__device__ int steps_of(const GroupedProduct& p, const Place& place) {
  return ((kWhat == Grouped::weight ? place.end - place.begin : p.left) + 63) / 64;
}

}  // namespace grouped
}  // namespace heddle::ops::cuda::hopper
