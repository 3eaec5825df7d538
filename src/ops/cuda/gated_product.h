#pragma once

// Device code of Hopper: matrix products whose results pass through SwiGLU before they leave the
// multiprocessor. Forward [gate | up] = a b^T and y = silu(gate) * up; backward dy = a b, of which
// and of gate and up come their gradients, and y again.
//
// A block makes tiles of 128 x 192: in forward 96 columns of gate and the same of up. The two
// blocks of a cluster lie one above the other and share the right factor: each copies half of it
// to both. One thread starts copies; two warpgroups take turns, tile by tile: while one multiplies,
// the other rounds its sums to bf16, 64 rows at a time in shared memory, and does the rest there.

#include <cuda_bf16.h>

#include "ops/cuda/hopper_instructions.h"

namespace heddle::ops::cuda::hopper {

struct GatedMaps {
  CUtensorMap a;     ///< [rows, summed], boxes of 128 x 64
  CUtensorMap b[2];  ///< forward: gate's and up's [width, summed], boxes of 96 x 64;
                     ///< backward: the first is [summed, width], boxes of 32 x 64
};

struct GatedProduct {
  int rows, width, summed;
  __nv_bfloat16 *gate, *up;    ///< written in forward, read in backward
  __nv_bfloat16 *dgate, *dup;  ///< backward's; may be gate and up
  __nv_bfloat16* y;
  std::int64_t stride, y_stride;  ///< of rows, in elements
};

namespace gated {

constexpr int kThreads = 384, kStages = 4;
constexpr int kColumns = 192;  // of a tile
constexpr int kLeftBytes = 128 * 128, kHalfBytes = kColumns / 2 * 128;
constexpr int kStageBytes = kLeftBytes + 2 * kHalfBytes;
constexpr int kBlockBytes = 64 * 128;                      // 64 x 64 results
constexpr int kResultBytes = kColumns / 64 * kBlockBytes;  // 64 rows of a tile
constexpr int kSharedBytes = kStages * kStageBytes + 2 * kResultBytes + 1024 + 128;
// Together what the block starts with: 3 x 168.
constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;

/// Barriers in shared memory: a stage was filled, was read.
struct Barriers {
  std::uint64_t full[kStages], empty[kStages];
};

/// The tiles of a cluster, 256 rows high. Bands of eight are walked column by column, so that
/// what the clusters read at a time stays in the cache.
template <bool kBackward>
class Tiles {
 public:
  static constexpr int kWidth = kBackward ? kColumns : kColumns / 2;  ///< columns of y
  __device__ explicit Tiles(const GatedProduct& p)
      : rows_((p.rows + 255) / 256), columns_((p.width + kWidth - 1) / kWidth) {}
  __device__ int first() const { return static_cast<int>(blockIdx.x) / 2; }
  __device__ int step() const { return static_cast<int>(gridDim.x) / 2; }
  __device__ int count() const { return rows_ * columns_; }
  /// Where this block's part begins.
  __device__ void find(int tile, int& row, int& column) const {
    constexpr int kBand = 8;
    const int band = tile / (kBand * columns_), in_band = tile - band * kBand * columns_;
    const int height = min(kBand, rows_ - band * kBand);
    column = in_band / height * kWidth;
    row = (band * kBand + in_band % height) * 256 + block_in_cluster() * 128;
  }

 private:
  int rows_, columns_;
};

/// A position in the ring of stages.
struct Position {
  int stage = 0;
  std::uint32_t parity = 0;
  __device__ void advance(int steps) {
    stage += steps;
    parity ^= stage / kStages & 1;
    stage %= kStages;
  }
};

template <bool kBackward>
__device__ void copy_in(unsigned char* stages, Barriers& barriers, const GatedMaps& maps,
                        const GatedProduct& p) {
  const Tiles<kBackward> tiles(p);
  const int rank = block_in_cluster();
  Position at{.stage = 0, .parity = 1};
  for (int tile = tiles.first(); tile < tiles.count(); tile += tiles.step()) {
    int row, column;
    tiles.find(tile, row, column);
    for (int k = 0; k < p.summed; k += 64, at.advance(1)) {
      std::uint64_t* const full = barriers.full + at.stage;
      unsigned char* const left = stages + at.stage * kStageBytes;
      unsigned char* const half = left + kLeftBytes + rank * kHalfBytes;
      wait_for(barriers.empty + at.stage, at.parity);
      arrive_and_expect(full, kStageBytes);
      start_box(left, maps.a, full, k, row, 0, 0);
      if constexpr (kBackward) {  // half of the summed indices
        for (int i = 0; i < kColumns / 64; ++i) {
          start_shared_box(half + i * (kBlockBytes / 2), maps.b[0], full, column + 64 * i,
                           k + 32 * rank, 0, 0);
        }
      } else {
        start_shared_box(half, maps.b[rank], full, k, column, 0, 0);
      }
    }
  }
}

/// What has to be added to a descriptor of the right factor for the i-th 16 of the summed index.
template <bool kBackward>
__device__ constexpr std::uint64_t right_step(int i) {
  return kBackward ? (i / 2 * kHalfBytes >> 4) + i % 2 * kNextRows : i * kNextInRow;
}

/// sums += a b for a tile: rows 0 to 63, then 64 to 127.
template <bool kBackward>
__device__ __forceinline__ void multiply(float (&sums)[2][kColumns / 2],
                                         const unsigned char* stages, Barriers& barriers,
                                         Position& at, int steps, int thread, int next_turn) {
  int before = 0;
  for (int k = 0; k < steps; ++k) {
    wait_for(barriers.full + at.stage, at.parity);
    const unsigned char* const left = stages + at.stage * kStageBytes;
    const std::uint64_t a = along_sum(left);
    const std::uint64_t b =
        kBackward ? across_sum(left + kLeftBytes, kBlockBytes / 2) : along_sum(left + kLeftBytes);
    begin_products();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        multiply_add<0, kBackward>(sums[half], a + half * (kBlockBytes >> 4) + i * kNextInRow,
                                   b + right_step<kBackward>(i), true);
      }
    }
    end_product_group();
    wait_for_products<1>();
    if (k > 0 && thread < 2) arrive_in(barriers.empty + before, thread);
    before = at.stage;
    at.advance(1);
  }
  if (next_turn != 0) arrive_at(next_turn, 256);
  wait_for_products<0>();
  if (thread < 2) arrive_in(barriers.empty + before, thread);
}

/// Rounds 64 x 192 sums to blocks of 64 x 64.
__device__ __forceinline__ void round_sums(const float (&sums)[kColumns / 2], std::uint32_t result,
                                           int thread) {
  const int lane = thread % 32;
  const std::uint32_t row = result + (thread / 32 * 16 + lane % 16) * 128;
#pragma unroll
  for (int i = 0; i < kColumns / 16; ++i) {
    const float* const s = sums + 8 * i;
    const std::uint32_t m[4] = {pack(s[0], s[1]), pack(s[2], s[3]), pack(s[4], s[5]),
                                pack(s[6], s[7])};
    store_matrices(row + i / 4 * kBlockBytes + ((2 * (i % 4) + lane / 16) ^ lane % 8) * 16, m);
  }
}

/// The v-th eight columns of row r.
__device__ __forceinline__ uint4 load_result(std::uint32_t result, int r, int v) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(result + v / 8 * kBlockBytes + r * 128 + ((v ^ r) % 8) * 16)
               : "memory");
  return x;
}
__device__ __forceinline__ uint4& vector_at(__nv_bfloat16* p) {
  return *reinterpret_cast<uint4*>(p);
}

__device__ __forceinline__ float low(std::uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(std::uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000U);
}
/// 1 / (1 + exp(-x)), good to a few units in the last place of f32.
__device__ __forceinline__ float sigmoid(float x) {
  float power, inverse;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * -1.44269504088896341F));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(power + 1.0F));
  return inverse;
}

__device__ __forceinline__ std::uint32_t swiglu(std::uint32_t gate, std::uint32_t up) {
  return pack(low(gate) * sigmoid(low(gate)) * low(up),
              high(gate) * sigmoid(high(gate)) * high(up));
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
  const Gradients a = gradients(low(dy), low(gate), low(up));
  const Gradients b = gradients(high(dy), high(gate), high(up));
  gate = pack(a.gate, b.gate);
  up = pack(a.up, b.up);
  return pack(a.y, b.y);
}

/// A warpgroup's work on its rounded sums, half a tile at a time.
template <bool kBackward>
class Finish {
 public:
  __device__ Finish(const GatedProduct& p, int row, int column, int thread)
      : p_(p), row_(row), column_(column), thread_(thread) {}

  /// Forward: writes gate, up and y.
  __device__ __forceinline__ void write(std::uint32_t result, int half) const {
#pragma unroll 2
    for (int i = 0; i < kVectors; ++i) {
      const Place at = place(i);
      const uint4 g = load_result(result, at.row, at.vector);
      const uint4 u = load_result(result, at.row, at.vector + kInRow);
      const std::int64_t row = row_ + 64 * half + at.row;
      if (!exists(half, at)) continue;
      const std::int64_t to = row * p_.stride + column_ + 8 * at.vector;
      vector_at(p_.gate + to) = g;
      vector_at(p_.up + to) = u;
      vector_at(p_.y + row * p_.y_stride + column_ + 8 * at.vector) = {
          swiglu(g.x, u.x), swiglu(g.y, u.y), swiglu(g.z, u.z), swiglu(g.w, u.w)};
    }
  }

  /// Backward: begins to bring the tile's gate and up nearer.
  __device__ __forceinline__ void prefetch() const {
    constexpr int kLines = kColumns / 64;  // of 128 bytes in a row
#pragma unroll 1
    for (int n = thread_; n < 128 * kLines; n += 128) {
      const std::int64_t row = row_ + n / kLines;
      const int column = column_ + n % kLines * 64;
      if (row >= p_.rows || column >= p_.width) continue;
      asm volatile("prefetch.global.L2 [%0];" ::"l"(p_.gate + row * p_.stride + column));
      asm volatile("prefetch.global.L2 [%0];" ::"l"(p_.up + row * p_.stride + column));
    }
  }
  /// Backward: what differentiate() of this batch, of kBatches in a half, reads of gate and up.
  __device__ __forceinline__ void fetch(int half, int batch) {
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const Place at = place(batch * kBatch + j);
      if (!exists(half, at)) continue;
      gate_[j] = vector_at(p_.gate + offset(half, at));
      up_[j] = vector_at(p_.up + offset(half, at));
    }
  }
  __device__ __forceinline__ void differentiate_half(std::uint32_t result, int half) {
#pragma unroll 1
    for (int batch = 0; batch < kBatches; ++batch) {
      uint4 gate[kBatch], up[kBatch];
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        gate[j] = gate_[j];
        up[j] = up_[j];
      }
      if (batch + 1 < kBatches) {
        fetch(half, batch + 1);
      } else if (half == 0) {
        fetch(1, 0);
      }
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const Place at = place(batch * kBatch + j);
        if (!exists(half, at)) continue;
        const uint4 dy = load_result(result, at.row, at.vector);
        const uint4 y{
            differentiate(dy.x, gate[j].x, up[j].x), differentiate(dy.y, gate[j].y, up[j].y),
            differentiate(dy.z, gate[j].z, up[j].z), differentiate(dy.w, gate[j].w, up[j].w)};
        vector_at(p_.dgate + offset(half, at)) = gate[j];
        vector_at(p_.dup + offset(half, at)) = up[j];
        vector_at(p_.y + (row_ + 64 * half + at.row) * p_.y_stride + column_ + 8 * at.vector) = y;
      }
    }
  }

 private:
  static constexpr int kInRow = Tiles<kBackward>::kWidth / 8;  // vectors of eight columns of y
  static constexpr int kVectors = 64 * kInRow / 128;           // of a thread in half a tile
  static constexpr int kBatch = 3, kBatches = kVectors / kBatch;
  struct Place {
    int row, vector;
  };
  __device__ Place place(int i) const {
    const int n = 128 * i + thread_;
    return {n / kInRow, n % kInRow};
  }
  __device__ bool exists(int half, const Place& at) const {
    return row_ + 64 * half + at.row < p_.rows && column_ + 8 * at.vector < p_.width;
  }
  __device__ std::int64_t offset(int half, const Place& at) const {
    return (row_ + 64 * half + at.row) * p_.stride + column_ + 8 * at.vector;
  }

  const GatedProduct& p_;
  int row_, column_, thread_;
  uint4 gate_[kBatch], up_[kBatch];
};

template <bool kBackward>
__device__ __forceinline__ void make_tiles(const unsigned char* stages, std::uint32_t results,
                                           Barriers& barriers, const GatedProduct& p) {
  const int group = static_cast<int>(threadIdx.x) / 128 - 1;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  const std::uint32_t result = results + group * kResultBytes;
  const int kDone = 1 + group, kTurn = 3 + group, kOthersTurn = 4 - group;  // barriers
  const Tiles<kBackward> tiles(p);
  const int steps = (p.summed + 63) / 64;
  Position at;
  if (group == 1) {
    at.advance(steps);
    if (tiles.first() < tiles.count()) arrive_at(kOthersTurn, 256);
  }
  float sums[2][kColumns / 2];
  for (int tile = tiles.first() + group * tiles.step(); tile < tiles.count();
       tile += 2 * tiles.step()) {
    int row, column;
    tiles.find(tile, row, column);
    Finish<kBackward> finish(p, row, column, thread);
    if (kBackward) finish.prefetch();
#pragma unroll
    for (int i = 0; i < kColumns; ++i) sums[i / (kColumns / 2)][i % (kColumns / 2)] = 0.0F;
    // A stage's parity tells no more than the last two fills apart: one group at a time waits.
    sync_threads(kTurn, 256);
    multiply<kBackward>(sums, stages, barriers, at, steps, thread,
                        tile + tiles.step() < tiles.count() ? kOthersTurn : 0);
    at.advance(steps);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sync_threads(kDone, 128);  // all have read what was here
      round_sums(sums[half], result, thread);
      if (kBackward && half == 0) finish.fetch(0, 0);
      sync_threads(kDone, 128);
      if constexpr (kBackward) {
        finish.differentiate_half(result, half);
      } else {
        finish.write(result, half);
      }
    }
  }
}

}  // namespace gated

template <bool kBackward>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(gated::kThreads, 1)
    gated_product(const __grid_constant__ GatedMaps maps, const __grid_constant__ GatedProduct p) {
  using namespace gated;
  extern __shared__ unsigned char memory[];
  unsigned char* const stages = reinterpret_cast<unsigned char*>(
      (reinterpret_cast<std::uintptr_t>(memory) + 1023) & ~std::uintptr_t{1023});
  unsigned char* const results = stages + kStages * kStageBytes;
  Barriers& barriers = *reinterpret_cast<Barriers*>(results + 2 * kResultBytes);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      init_barrier(barriers.full + i, 1);
      init_barrier(barriers.empty + i, 2);  // a group of each block
    }
    fence_barrier_init();
  }
  sync_cluster();
  if (threadIdx.x >= 128) {
    take_registers<kConsumerRegisters>();
    make_tiles<kBackward>(stages, shared_address(results), barriers, p);
  } else {
    give_registers<kProducerRegisters>();
    if (threadIdx.x == 0) copy_in<kBackward>(stages, barriers, maps, p);
  }
  sync_cluster();  // the other block may still copy to this one or arrive at its barriers
}

}  // namespace heddle::ops::cuda::hopper
