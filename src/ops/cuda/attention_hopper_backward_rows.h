#pragma once

// Device code only, of Hopper: what is done with rows before and behind the kernels that make the
// gradients of attention.

#include "ops/cuda/attention_hopper_backward_jobs.h"

namespace heddle::ops::cuda::hopper {

constexpr int kPrepareThreads = 256, kFinishThreads = 128;

/// What the kernel wants, as it wants it.
struct Prepared {
  float *lse, *delta, *dq_sums, *dk_sums, *dv_sums;
  int *first_keys, *tile_ends, *next_job;
};

/// Of columns 8 chunk to 8 chunk + 7, and of as many 64 further on, and so on.
template <int kWidth>
__device__ float part_of_delta(const Bf16* dout, const Bf16* out, int chunk) {
  float sum = 0.0F;
#pragma unroll
  for (int i = 8 * chunk; i < kWidth; i += 64) {
    const auto x = Pack<Bf16, 8>::load(dout + i), y = Pack<Bf16, 8>::load(out + i);
#pragma unroll
    for (int j = 0; j < 8; ++j) sum += x.get(j) * y.get(j);
  }
  return sum;
}

/// A block per 64 queries of a head: delta (of whole sequences = the sum of dout * out), lse, and
/// cleared sums of dq unless they are kept. Those of head 0 also copy the first keys and find what
/// queries see keys.
template <int kWidth, bool kIsBlock>
__global__ void __launch_bounds__(kPrepareThreads)
    prepare_kernel(BackwardOperands<Bf16, kIsBlock> o, int query_tiles, int key_tiles,
                   bool keeps_sums, Prepared to) {
  const auto& p = o.problem;
  const int h = static_cast<int>(blockIdx.x) % p.heads, b = static_cast<int>(blockIdx.y);
  const int tile = static_cast<int>(blockIdx.x) / p.heads;
  const int thread = static_cast<int>(threadIdx.x), chunk = thread % 8;
  const std::int64_t head = static_cast<std::int64_t>(b) * p.heads + h;
  const auto queries = static_cast<int>(p.queries);

  constexpr int kSumsOfTile = kQueryTile * kWidth;
  auto* const sums =
      reinterpret_cast<float4*>(to.dq_sums + (head * query_tiles + tile) * kSumsOfTile);
  if (!keeps_sums) {
#pragma unroll
    for (int i = 0; i < kSumsOfTile / 4; i += kPrepareThreads) sums[i + thread] = float4{};
  }
#pragma unroll
  for (int i = 0; i < kQueryTile; i += kPrepareThreads / 8) {
    const int row = i + thread / 8, s = tile * kQueryTile + row;
    const bool exists = s < queries;
    float delta = 0.0F;
    if constexpr (kIsBlock) {
      if (chunk == 0 && exists) delta = o.delta.at(b, h, s);
    } else {
      if (exists) delta = part_of_delta<kWidth>(o.dout.at(b, s, h), o.out.at(b, s, h), chunk);
#pragma unroll
      for (int other = 1; other < 8; other *= 2) {
        delta += __shfl_xor_sync(0xffffffffU, delta, other);
      }
    }
    const int place = tile * kQueryTile + LaneValues<float>::place(row);
    if (chunk == 0) {
      const std::int64_t at = head * query_tiles * kQueryTile + place;
      const float lse = exists ? o.lse.at(b, h, s) : -INFINITY;
      to.delta[at] = delta;
      to.lse[at] = lse == -INFINITY ? INFINITY : lse * kLog2E;  // no probabilities
    }
    if (chunk == 1 && h == 0 && p.first_key != nullptr) {
      to.first_keys[b * query_tiles * kQueryTile + place] =
          static_cast<int>(p.first_of(b, min(s, queries - 1)));
    }
  }
  if (h != 0) return;
  // Documents begin later and later: tiles of queries that see the keys are the first ones.
  for (int key_tile = tile; key_tile < key_tiles; key_tile += query_tiles) {
    const int first_key = key_tile * kKeyTile, last_key = first_key + kKeyTile - 1;
    const int begin = first_query_tile(first_key, static_cast<int>(p.query_offset));
    int end = begin;
    for (int first = begin; first < query_tiles; first += kPrepareThreads) {
      const int other = first + thread;
      end +=
          __syncthreads_count(other < query_tiles && p.first_of(b, other * kQueryTile) <= last_key);
    }
    if (thread == 0) to.tile_ends[b * key_tiles + key_tile] = end;
  }
  if (blockIdx.x == 0 && b == 0 && thread == 0) *to.next_job = 0;
}

/// A thread's share of the sums of 64 queries and 64 columns: as a product has them.
__device__ __forceinline__ void load_sums(const float4* from, float (&sums)[32]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float4 four = from[kFinishThreads * i + threadIdx.x];
    sums[4 * i] = four.x;
    sums[4 * i + 1] = four.y;
    sums[4 * i + 2] = four.z;
    sums[4 * i + 3] = four.w;
  }
}

/// Writes or adds to dq, which a product's order would touch in pieces of 64 bytes: rows are made
/// in shared memory first.
template <int kWidth>
__device__ __forceinline__ void put_rows(const float4* from, float scale, bool adds, float* dq,
                                         std::int64_t stride, int rows) {
  constexpr int kLanes = kWidth / 4;  // of a row
  __shared__ float tile[kQueryTile][kWidth + 8];
#pragma unroll
  for (int column = 0; column < kWidth; column += 64, from += 8 * kFinishThreads) {
    float sums[32];
    load_sums(from, sums);
#pragma unroll
    for (int i = 0; i < 32; i += 2) {
      *reinterpret_cast<float2*>(&tile[row_of(i)][column + column_of(i)]) = {scale * sums[i],
                                                                             scale * sums[i + 1]};
    }
  }
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
#pragma unroll 8
  for (int i = 0; i < kQueryTile; i += kFinishThreads / kLanes) {
    const int row = i + static_cast<int>(threadIdx.x) / kLanes;
    if (row >= rows) break;
    const float4 own = *reinterpret_cast<const float4*>(&tile[row][4 * lane]);
    auto* const to = reinterpret_cast<float4*>(dq + row * stride + 4 * lane);
    const float4 old = adds ? *to : float4{};
    *to = {old.x + own.x, old.y + own.y, old.z + own.z, old.w + own.w};
  }
}

/// dq from its sums; a block per 64 queries of a head. `adds`: of blocks, else it is written.
template <int kWidth, bool kIsBlock>
__global__ void __launch_bounds__(kFinishThreads)
    finish_kernel(const float* dq_sums, HeadView<ResultOf<Bf16, kIsBlock>> dq, int queries,
                  int heads, int sum_tiles, float scale, bool adds) {
  const int h = static_cast<int>(blockIdx.x) % heads, b = static_cast<int>(blockIdx.y);
  const int tile = static_cast<int>(blockIdx.x) / heads, first = tile * kQueryTile;
  const std::int64_t head = static_cast<std::int64_t>(b) * heads + h;
  const auto* from =
      reinterpret_cast<const float4*>(dq_sums + (head * sum_tiles + tile) * kQueryTile * kWidth);
  if constexpr (kIsBlock) {
    put_rows<kWidth>(from, scale, adds, dq.at(b, first, h), dq.position, queries - first);
  } else {
#pragma unroll
    for (int column = 0; column < kWidth; column += 64, from += 8 * kFinishThreads) {
      float sums[32];
      load_sums(from, sums);
      put_sums(sums, scale, dq.at(b, first, h) + column, dq.position, queries - first);
    }
  }
}

/// dk or dv of whole sequences from its sums, [batch][keys][groups][128]; a thread per 8 columns.
static __global__ void __launch_bounds__(kPrepareThreads)
    round_keys_kernel(const float* sums, HeadView<Bf16> to, int keys, int groups,
                      std::int64_t count) {
  const std::int64_t chunk = static_cast<std::int64_t>(blockIdx.x) * kPrepareThreads + threadIdx.x;
  if (8 * chunk >= count) return;
  const std::int64_t row = chunk / 16, position = row / groups;
  Pack<Bf16, 8> rounded;
  const auto x = Pack<float, 4>::load(sums + 8 * chunk),
             y = Pack<float, 4>::load(sums + 8 * chunk + 4);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    rounded.set(i, x.get(i));
    rounded.set(i + 4, y.get(i));
  }
  rounded.store(
      to.at(static_cast<int>(position / keys), position % keys, static_cast<int>(row % groups)) +
      chunk % 16 * 8);
}

}  // namespace heddle::ops::cuda::hopper
