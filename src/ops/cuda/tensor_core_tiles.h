#pragma once

// Device code only: products of tiles of bf16 in shared memory, on tensor cores, with sums in f32.
//
// A tile has rows of kWidth values and starts at a multiple of 1 KiB. Its 16 bytes c of row r lie
// at 16 bytes c ^ (r % 8) of that row: eight rows of one column are in different banks.
//
// A warp has its sums in blocks of 16 x 8: sums[m][n] are rows 16 m to 16 m + 15 and columns 8 n to
// 8 n + 7, spread over the lanes as multiply_add says. Element i of them is row
// lane / 4 + 8 (i / 2) and column 2 (lane % 4) + i % 2 of the block.

#include <cuda_bf16.h>

#include "ops/cuda/tensor_core_instructions.h"
#include "ops/cuda/vectors.h"

namespace heddle::ops::cuda {

__device__ __forceinline__ int lane_id() { return static_cast<int>(threadIdx.x) % 32; }
__device__ __forceinline__ int warp_id() { return static_cast<int>(threadIdx.x) / 32; }

template <int kWidth>
__host__ __device__ constexpr int tile_bytes(int rows) {
  return rows * kWidth * static_cast<int>(sizeof(Bf16));
}

/// Where 16 bytes of a row lie in their tile.
template <int kWidth>
__device__ __forceinline__ int chunk_offset(int row, int chunk) {
  return tile_bytes<kWidth>(row) + ((chunk ^ (row % 8)) * 16);
}

/// Starts to copy rows [begin, begin + kRows) of `from`; rows from `end` on and columns from
/// `width` on are 0. For all kThreads threads of a block.
template <int kWidth, int kRows, int kThreads>
__device__ __forceinline__ void start_rows(unsigned char* tile, const Bf16* from,
                                           std::int64_t stride, int begin, int end, int width) {
  constexpr int kChunks = kWidth / 8, kStep = kThreads / kChunks;
  static_assert(kStep % 8 == 0 && kRows % kStep == 0);
  const int row0 = static_cast<int>(threadIdx.x) / kChunks;
  const int chunk = static_cast<int>(threadIdx.x) % kChunks;
  const bool is_inside = chunk * 8 < width;
  const Bf16* at = from + (begin + row0) * stride + chunk * 8;
  unsigned char* const to = tile + chunk_offset<kWidth>(row0, chunk);
#pragma unroll
  for (int row = 0; row < kRows; row += kStep) {
    start_copy<16>(to + tile_bytes<kWidth>(row), at, is_inside && begin + row0 + row < end);
    at += kStep * stride;
  }
}

/// The address of a lane's row for load_matrices; other columns 16 k of it are at this ^ 32 k, rows
/// at multiples of 16 behind it by tile_bytes.
template <int kWidth>
__device__ __forceinline__ std::uint32_t lane_address(const unsigned char* rows, int row,
                                                      int chunk) {
  return shared_address(rows) + static_cast<std::uint32_t>(chunk_offset<kWidth>(row, chunk));
}

/// sums = the products of 16 kM rows from `a_rows` on with 8 kN rows from `b_rows` on.
template <int kWidth, int kM, int kN>
__device__ __forceinline__ void multiply_rows(const unsigned char* a_rows,
                                              const unsigned char* b_rows,
                                              float (&sums)[kM][kN][4]) {
  const int lane = lane_id();
  const std::uint32_t a_at = lane_address<kWidth>(a_rows, lane % 16, lane / 16);
  const std::uint32_t b_at = lane_address<kWidth>(b_rows, lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[m][n][i] = 0.0F;
    }
  }
#pragma unroll
  for (int k = 0; k < kWidth / 16; ++k) {
    std::uint32_t a[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      load_matrices(a[m], (a_at ^ (32 * k)) + tile_bytes<kWidth>(16 * m));
    }
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      std::uint32_t b[4];
      load_matrices(b, (b_at ^ (32 * k)) + tile_bytes<kWidth>(8 * n));
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        multiply_add(sums[m][n], a[m], b[0], b[1]);
        multiply_add(sums[m][n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

/// Sums, rounded, as the left side of a product: blocks of 16 x 16.
template <int kM, int kN>
__device__ __forceinline__ void round_to_weights(const float (&sums)[kM][kN][4],
                                                 std::uint32_t (&weights)[kM][kN / 2][4]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      weights[m][n / 2][n % 2 * 2] = pair_of(sums[m][n][0], sums[m][n][1]);
      weights[m][n / 2][n % 2 * 2 + 1] = pair_of(sums[m][n][2], sums[m][n][3]);
    }
  }
}

/// sums += weights times the 16 kK rows from `rows` on.
template <int kWidth, int kM, int kK>
__device__ __forceinline__ void add_weighted_rows(const std::uint32_t (&weights)[kM][kK][4],
                                                  const unsigned char* rows,
                                                  float (&sums)[kM][kWidth / 8][4]) {
  const int lane = lane_id();
  const std::uint32_t at = lane_address<kWidth>(rows, lane % 16, lane / 16);
#pragma unroll
  for (int k = 0; k < kK; ++k) {
#pragma unroll
    for (int n = 0; n < kWidth / 8; n += 2) {
      std::uint32_t b[4];
      load_transposed(b, (at ^ (16 * n)) + tile_bytes<kWidth>(16 * k));
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        multiply_add(sums[m][n], weights[m][k], b[0], b[1]);
        multiply_add(sums[m][n + 1], weights[m][k], b[2], b[3]);
      }
    }
  }
}

template <int kM, int kN>
__device__ __forceinline__ void scale_sums(float (&sums)[kM][kN][4], float factor) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[m][n][i] *= factor;
    }
  }
}

/// Writes a warp's sums, rounded, to rows [begin, end) of `to`, at most 16 kM, by way of `rows` in
/// a tile, which only this warp uses.
template <int kWidth, int kM>
__device__ __forceinline__ void store_rows(const float (&sums)[kM][kWidth / 8][4],
                                           unsigned char* rows, Bf16* to, std::int64_t stride,
                                           int begin, int end, int width) {
  constexpr int kChunks = kWidth / 8;
  const int lane = lane_id();
  __syncwarp();
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kChunks; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = chunk_offset<kWidth>(16 * m + 8 * half + lane / 4, n) + lane % 4 * 4;
        *reinterpret_cast<std::uint32_t*>(rows + at) =
            pair_of(sums[m][n][2 * half], sums[m][n][2 * half + 1]);
      }
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 16 * kM * kChunks; i += 32) {
    const int row = (i + lane) / kChunks, chunk = (i + lane) % kChunks;
    if (begin + row < end && chunk * 8 < width) {
      Pack<Bf16, 8>::load(reinterpret_cast<const Bf16*>(rows + chunk_offset<kWidth>(row, chunk)))
          .store(to + (begin + row) * stride + chunk * 8);
    }
  }
}

}  // namespace heddle::ops::cuda
