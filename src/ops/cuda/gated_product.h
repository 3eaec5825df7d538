#pragma once

// Device code of Hopper: matrix products whose results pass through SwiGLU before they leave the
// multiprocessor. Forward [gate | up] = a b^T and y = silu(gate) * up; backward dy = a b, of which
// and of gate and up come their gradients, and y again.
//
// A tile is 128 x 256: in forward 128 columns of gate and the same of up. The two blocks of a
// cluster lie one above the other and share the right factor. Warpgroups round the sums to bf16;
// the other warps do the rest.

#include <cuda_bf16.h>

#include "ops/cuda/hopper_pair_product.h"

namespace heddle::ops::cuda::hopper {

struct GatedMaps {
  CUtensorMap a;     ///< [rows, summed], boxes of 128 x 64
  CUtensorMap b[2];  ///< forward: gate's and up's [width, summed], boxes of 128 x 64;
                     ///< backward: the first is [summed, width], boxes of 64 x 64
};

struct GatedProduct {
  int rows, width, summed;
  __nv_bfloat16 *gate, *up;    ///< written in forward, read in backward
  __nv_bfloat16 *dgate, *dup;  ///< backward's; may be gate and up
  __nv_bfloat16* y;
  std::int64_t stride, y_stride;  ///< of rows, in elements
};

namespace gated {

using namespace pair;

/// The tiles of a cluster, 256 rows high.
template <bool kBackward>
class Tiles {
 public:
  static constexpr int kWidth = kBackward ? 256 : 128;  ///< columns of y
  __device__ explicit Tiles(const GatedProduct& p)
      : grid_{(p.rows + 255) / 256, (p.width + kWidth - 1) / kWidth} {}
  __device__ int first() const { return static_cast<int>(blockIdx.x) / 2; }
  __device__ int step() const { return static_cast<int>(gridDim.x) / 2; }
  __device__ int count() const { return grid_.rows * grid_.columns; }
  /// Where this block's part begins.
  __device__ Grid::Place find(int tile) const {
    const auto [row, column] = grid_.find(tile);
    return {row * 256 + block_in_cluster() * 128, column * kWidth};
  }

 private:
  Grid grid_;
};

template <bool kBackward>
__device__ void copy_in(unsigned char* stages, Barriers& barriers, const GatedMaps& maps,
                        const GatedProduct& p) {
  const Tiles<kBackward> tiles(p);
  const int rank = block_in_cluster();
  Turn<kStages> at{.index = 0, .parity = 1};
  for (int tile = tiles.first(); tile < tiles.count(); tile += tiles.step()) {
    const auto [row, column] = tiles.find(tile);
    for (int k = 0; k < p.summed; k += 64, at.advance()) {
      std::uint64_t* const full = barriers.full + at.index;
      unsigned char* const left = stages + at.index * kStageBytes;
      unsigned char* const half = left + kLeftBytes + rank * 2 * kTileBytes;
      wait_for(barriers.empty + at.index, at.parity);
      arrive_and_expect(full, kStageBytes);
      start_box(left, maps.a, full, k, row, 0, 0);
      if constexpr (kBackward) {
        for (int i = 0; i < 2; ++i) {
          start_shared_box(half + i * kTileBytes, maps.b[0], full, column + 128 * rank + 64 * i, k,
                           0, 0);
        }
      } else {
        start_shared_box(half, maps.b[rank], full, k, column, 0, 0);
      }
    }
  }
}

template <bool kBackward>
__device__ __forceinline__ void make_tiles(unsigned char* stages, std::uint32_t results,
                                           Barriers& barriers, const GatedProduct& p) {
  const int group = static_cast<int>(threadIdx.x) / 128 - 1;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const Tiles<kBackward> tiles(p);
  const int steps = (p.summed + 63) / 64;
  Turn<kStages> at;
  std::uint32_t taken = 1;
  float sums[128];
  for (int tile = tiles.first(); tile < tiles.count(); tile += tiles.step(), taken ^= 1) {
    multiply<0, kBackward>(sums, stages, barriers, at, steps, group, thread, NothingElse{});
    wait_for(barriers.taken + group, taken);
    round_sums(sums, results + group * kResultBytes, thread);
    arrive(barriers.made + group);
  }
}

__device__ __forceinline__ uint4& vector_at(__nv_bfloat16* p) {
  return *reinterpret_cast<uint4*>(p);
}

/// 1 / (1 + exp(-x)), good to a few units in the last place of f32.
__device__ __forceinline__ float sigmoid(float x) {
  float power, inverse;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * -kLog2E));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(power + 1.0F));
  return inverse;
}

__device__ __forceinline__ std::uint32_t swiglu(std::uint32_t gate, std::uint32_t up) {
  return pair_of(low_of(gate) * sigmoid(low_of(gate)) * low_of(up),
                 high_of(gate) * sigmoid(high_of(gate)) * high_of(up));
}

struct Gradients {
  float gate, up, y;
};
__device__ __forceinline__ Gradients gradients(float dy, float gate, float up) {
  const float s = sigmoid(gate), gated = gate * s;
  return {dy * up * fmaf(gated, 1.0F - s, s), dy * gated, gated * up};
}
/// Replaces gate and up by their gradients; returns y.
__device__ __forceinline__ std::uint32_t differentiate(std::uint32_t dy, std::uint32_t& gate,
                                                       std::uint32_t& up) {
  const Gradients a = gradients(low_of(dy), low_of(gate), low_of(up));
  const Gradients b = gradients(high_of(dy), high_of(gate), high_of(up));
  gate = pair_of(a.gate, b.gate);
  up = pair_of(a.up, b.up);
  return pair_of(a.y, b.y);
}

// What helpers do with a warpgroup's result, rows and columns from `row` and `column` on. A warp
// of them takes a line of 32 vectors of eight columns at a time: two rows of gate and up, or one of
// dy.

__device__ __forceinline__ void finish_forward(std::uint32_t result, const GatedProduct& p, int row,
                                               int column, int helper, int lane) {
  const int v = lane % 16;
  if (column + 8 * v >= p.width) return;
#pragma unroll 4
  for (int line = helper; line < 32; line += kHelpers) {
    const int r = 2 * line + lane / 16;
    if (row + r >= p.rows) continue;
    const uint4 g = load_result(result, r, v), u = load_result(result, r, v + 16);
    const std::int64_t at = (row + r) * p.stride + column + 8 * v;
    vector_at(p.gate + at) = g;
    vector_at(p.up + at) = u;
    vector_at(p.y + (row + r) * p.y_stride + column + 8 * v) = {swiglu(g.x, u.x), swiglu(g.y, u.y),
                                                                swiglu(g.z, u.z), swiglu(g.w, u.w)};
  }
}

class FinishBackward {
 public:
  __device__ FinishBackward(const GatedProduct& p, int row, int column, int helper, int lane)
      : p_(p),
        helper_(helper),
        lane_(lane),
        rows_(column + 8 * lane < p.width ? min(64, p.rows - row) : 0),
        at_(row * p.stride + column + 8 * lane),
        y_at_(row * p.y_stride + column + 8 * lane) {}

  /// Starts to read gate and up for a batch of lines.
  __device__ __forceinline__ void fetch(int batch) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int r = row(batch, i);
      if (r >= rows_) continue;
      gate_[i] = vector_at(p_.gate + at_ + r * p_.stride);
      up_[i] = vector_at(p_.up + at_ + r * p_.stride);
    }
  }
  /// All batches, of which the first was fetched.
  __device__ __forceinline__ void run(std::uint32_t result) {
#pragma unroll 2
    for (int batch = 0; batch < kBatches; ++batch) {
      uint4 gate[kBatch], up[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        gate[i] = gate_[i];
        up[i] = up_[i];
      }
      fetch(batch + 1);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int r = row(batch, i);
        if (r >= rows_) continue;
        const uint4 dy = load_result(result, r, lane_);
        vector_at(p_.y + y_at_ + r * p_.y_stride) = {
            differentiate(dy.x, gate[i].x, up[i].x), differentiate(dy.y, gate[i].y, up[i].y),
            differentiate(dy.z, gate[i].z, up[i].z), differentiate(dy.w, gate[i].w, up[i].w)};
        vector_at(p_.dgate + at_ + r * p_.stride) = gate[i];
        vector_at(p_.dup + at_ + r * p_.stride) = up[i];
      }
    }
  }

 private:
  static constexpr int kBatch = 4, kBatches = (64 + kHelpers * kBatch - 1) / (kHelpers * kBatch);
  __device__ int row(int batch, int i) const { return (batch * kBatch + i) * kHelpers + helper_; }

  const GatedProduct& p_;
  int helper_, lane_, rows_;
  std::int64_t at_, y_at_;
  uint4 gate_[kBatch], up_[kBatch];
};

template <bool kBackward>
__device__ void help(std::uint32_t results, Barriers& barriers, const GatedProduct& p) {
  const int helper = static_cast<int>(threadIdx.x) / 32 - 1;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Tiles<kBackward> tiles(p);
  std::uint32_t made = 0;
  for (int tile = tiles.first(); tile < tiles.count(); tile += tiles.step(), made ^= 1) {
    auto [row, column] = tiles.find(tile);
    for (int group = 0; group < kGroups; ++group, row += 64) {
      const std::uint32_t result = results + group * kResultBytes;
      if constexpr (kBackward) {
        FinishBackward finish(p, row, column, helper, lane);
        finish.fetch(0);
        wait_for(barriers.made + group, made);
        finish.run(result);
      } else {
        wait_for(barriers.made + group, made);
        finish_forward(result, p, row, column, helper, lane);
      }
      arrive(barriers.taken + group);
    }
  }
}

}  // namespace gated

template <bool kBackward>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(pair::kThreads, 1)
    gated_product(const __grid_constant__ GatedMaps maps, const __grid_constant__ GatedProduct p) {
  using namespace gated;
  extern __shared__ unsigned char memory[];
  const auto [stages, results, barriers, rest] = divide(memory);
  if (threadIdx.x == 0) init(barriers);
  sync_cluster();
  if (threadIdx.x >= 128) {
    take_registers<kConsumerRegisters>();
    make_tiles<kBackward>(stages, shared_address(results), barriers, p);
  } else {
    give_registers<kProducerRegisters>();
    if (threadIdx.x == 0) {
      copy_in<kBackward>(stages, barriers, maps, p);
    } else if (threadIdx.x >= 32) {
      help<kBackward>(shared_address(results), barriers, p);
    }
  }
  sync_cluster();  // the other block may still copy to this one or arrive at its barriers
}

}  // namespace heddle::ops::cuda::hopper
