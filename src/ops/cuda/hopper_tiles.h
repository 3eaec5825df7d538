#pragma once

// Device code only, of Hopper. Tiles of 64 x 64 bf16 that a warpgroup multiplies, as copies with a
// swizzle of 128 bytes leave them in shared memory, and its sums of 64 x 64 in registers.

#include "ops/cuda/hopper_instructions.h"
#include "ops/cuda/tensor_core_tiles.h"

namespace heddle::ops::cuda::hopper {

constexpr int kTileBytes = 64 * 128;

/// A place in a ring of buffers, and the parity its use has there.
template <int kSize>
struct Turn {
  int index = 0;
  std::uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++index == kSize) {
      index = 0;
      parity ^= 1;
    }
  }
  __device__ __forceinline__ Turn before() const {
    return index > 0 ? Turn{index - 1, parity} : Turn{kSize - 1, parity ^ 1};
  }
};

/// x, the same for all lanes of a warp, in a way that the compiler sees.
__device__ __forceinline__ int uniform(int x) { return __shfl_sync(0xffffffffU, x, 0); }

/// Stores 16 x 16 values, as products have them, to rows from row0 and columns from 16 k on of a
/// swizzled tile in shared memory.
__device__ __forceinline__ void store_block(std::uint32_t tile, int row0, int k,
                                            const std::uint32_t (&from)[4]) {
  const auto offset =
      static_cast<std::uint32_t>(chunk_offset<64>(row0 + lane_id() % 16, 2 * k + lane_id() / 16));
  store_matrices(tile + offset, from);
}

/// Lane i of each four gets all four lanes' x[i].
__device__ __forceinline__ uint4 transpose_four(std::uint32_t x0, std::uint32_t x1,
                                                std::uint32_t x2, std::uint32_t x3) {
  constexpr unsigned kAll = 0xffffffffU;
  const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
  const std::uint32_t a = __shfl_xor_sync(kAll, odd ? x0 : x1, 1);
  const std::uint32_t b = __shfl_xor_sync(kAll, odd ? x2 : x3, 1);
  (odd ? x0 : x1) = a;
  (odd ? x2 : x3) = b;
  const std::uint32_t c = __shfl_xor_sync(kAll, upper ? x0 : x2, 2);
  const std::uint32_t d = __shfl_xor_sync(kAll, upper ? x1 : x3, 2);
  (upper ? x0 : x2) = c;
  (upper ? x1 : x3) = d;
  return {x0, x1, x2, x3};
}

/// Of a lane's sums of columns 2 (lane % 4) and the next, x and y, and of those 8 behind: four that
/// follow each other, from first_of_four() on.
__device__ __forceinline__ float4 four_of(float x0, float x1, float y0, float y1) {
  const bool odd = threadIdx.x & 1;
  const float a = __shfl_xor_sync(0xffffffffU, odd ? x0 : y0, 1);
  const float b = __shfl_xor_sync(0xffffffffU, odd ? x1 : y1, 1);
  return odd ? float4{a, b, y0, y1} : float4{x0, x1, a, b};
}
__device__ __forceinline__ int first_of_four() { return lane_id() % 2 * 8 + lane_id() % 4 / 2 * 4; }

/// A warpgroup's 64 x 64 sums, times `factor`, as rows of `to`, those before `rows`.
__device__ __forceinline__ void put_sums(const float (&sums)[32], float factor, Bf16* to,
                                         std::int64_t stride, int rows) {
  const int lane = lane_id();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp_id() % 4 * 16 + lane / 4 + 8 * half;
    Bf16* const at = to + row * stride + 8 * (lane % 4);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      std::uint32_t x[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int d = 4 * (4 * i + j) + 2 * half;
        x[j] = pair_of(factor * sums[d], factor * sums[d + 1]);
      }
      const uint4 eight = transpose_four(x[0], x[1], x[2], x[3]);
      if (row < rows) *reinterpret_cast<uint4*>(at + 32 * i) = eight;
    }
  }
  __syncwarp();  // that the compiler knows: see below
}

/// The same, added. Rows behind add nothing to the last one, and there is no branch: behind one the
/// compiler takes a warp's lanes for apart, and what products need from uniform registers.
__device__ __forceinline__ void put_sums(const float (&sums)[32], float factor, float* to,
                                         std::int64_t stride, int rows) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp_id() % 4 * 16 + lane_id() / 4 + 8 * half;
    const float own_factor = row < rows ? factor : 0.0F;
    float* const at = to + min(row, rows - 1) * stride + first_of_four();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int d = 8 * i + 2 * half;
      const float4 four = four_of(sums[d], sums[d + 1], sums[d + 4], sums[d + 5]);
      add_four(at + 16 * i, {own_factor * four.x, own_factor * four.y, own_factor * four.z,
                             own_factor * four.w});
    }
  }
}

/// The warpgroup's row that element i of its sums is of, and the column.
__device__ __forceinline__ int row_of(int i) {
  return warp_id() % 4 * 16 + lane_id() / 4 + 8 * (i / 2 % 2);
}
__device__ __forceinline__ int column_of(int i) {
  return 8 * (i / 4) + 2 * (lane_id() % 4) + i % 2;
}

/// What a lane needs of a row of 64: of queries 8 i + 2 (lane % 4) and the next, i from 0.
template <class T>
struct LaneValues {
  T of[16];

  /// Where query s of a row lies, so that a lane finds four of its own together.
  __device__ static int place(int s) {
    return s / 16 * 16 + s % 8 / 2 * 4 + s % 16 / 8 * 2 + s % 2;
  }
  __device__ __forceinline__ void load(const T* row) {
    struct alignas(16) Four {
      T of[4];
    };
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Four four = reinterpret_cast<const Four*>(row)[4 * i + lane_id() % 4];
#pragma unroll
      for (int j = 0; j < 4; ++j) of[4 * i + j] = four.of[j];
    }
  }
};

/// d = the rows of a times the rows of b.
__device__ __forceinline__ void multiply_rows(float (&d)[32], std::uint64_t a, std::uint64_t b) {
#pragma unroll
  for (int k = 0; k < 4; ++k) multiply_add(d, a + k * kNextInRow, b + k * kNextInRow, k != 0);
}

/// The same of rows in kBlocks blocks, which lie `next_a` and `next_b` behind each other.
template <int kBlocks>
__device__ __forceinline__ void multiply_rows(float (&d)[32], std::uint64_t a, int next_a,
                                              std::uint64_t b, int next_b) {
#pragma unroll
  for (int k = 0; k < 4 * kBlocks; ++k) {
    const std::uint64_t step = k % 4 * kNextInRow;
    multiply_add(d, a + k / 4 * next_a + step, b + k / 4 * next_b + step, k != 0);
  }
}

/// d += left times b.
template <int kN>
__device__ __forceinline__ void multiply_left(float (&d)[kN], const std::uint32_t (&left)[4][4],
                                              std::uint64_t b) {
#pragma unroll
  for (int k = 0; k < 4; ++k) multiply_add<1>(d, left[k], b + k * kNextRows, true);
}

/// d (+)= the transpose of a times b.
__device__ __forceinline__ void multiply_columns(float (&d)[32], std::uint64_t a, std::uint64_t b,
                                                 bool keep) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    multiply_add<1, 1>(d, a + k * kNextRows, b + k * kNextRows, keep || k != 0);
  }
}

}  // namespace heddle::ops::cuda::hopper
