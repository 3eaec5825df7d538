#pragma once

// Device code only, of Hopper: what is done with rows before and behind the kernels that make the
// gradients of attention.

#include "ops/cuda/attention_hopper_backward_sums.h"

namespace heddle::ops::cuda::hopper {

constexpr int kPrepareThreads = 256, kFinishThreads = 128;

/// What the kernel wants, as it wants it.
struct Prepared {
  float *lse, *delta, *dq_sums, *dk_sums, *dv_sums;
  int *first_keys, *tile_ends, *next_job;
  // Of exact sums, else absent.
  float* splits;
  unsigned* largest;  // of k's and of v's elements, as bits of f32
};

__device__ __forceinline__ float largest_of(const Pack<Bf16, 8>& x) {
  float largest = 0.0F;
#pragma unroll
  for (int i = 0; i < 8; ++i) largest = fmaxf(largest, fabsf(x.get(i)));
  return largest;
}

/// largest[0] and [1], which are 0 before, = the largest of k's and v's elements, rows of
/// kWidth; a thread per 8 columns.
template <int kWidth>
__global__ void __launch_bounds__(kPrepareThreads)
    largest_kernel(HeadView<const Bf16> k, HeadView<const Bf16> v, std::int64_t rows, int keys,
                   int groups, unsigned* largest) {
  constexpr int kLanes = kWidth / 8;
  float of_k = 0.0F, of_v = 0.0F;
  const std::int64_t threads = static_cast<std::int64_t>(gridDim.x) * kPrepareThreads;
  for (std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kPrepareThreads + threadIdx.x;
       at < rows * kLanes; at += threads) {
    const std::int64_t row = at / kLanes, position = row / groups;
    const auto b = static_cast<int>(position / keys), g = static_cast<int>(row % groups);
    const std::int64_t column = at % kLanes * 8;
    of_k = fmaxf(of_k, largest_of(Pack<Bf16, 8>::load(k.at(b, position % keys, g) + column)));
    of_v = fmaxf(of_v, largest_of(Pack<Bf16, 8>::load(v.at(b, position % keys, g) + column)));
  }
  // Of numbers that are not negative, bits are ordered as they are.
  const unsigned k_bits = __reduce_max_sync(0xffffffffU, __float_as_uint(of_k));
  const unsigned v_bits = __reduce_max_sync(0xffffffffU, __float_as_uint(of_v));
  if (threadIdx.x % 32 != 0) return;
  atomicMax(largest, k_bits);
  atomicMax(largest + 1, v_bits);
}

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
  const int parts = to.splits == nullptr ? 1 : 2;
  auto* const sums =
      reinterpret_cast<float4*>(to.dq_sums + (head * query_tiles + tile) * parts * kSumsOfTile);
  if (!keeps_sums) {
#pragma unroll 4
    for (int i = 0; i < parts * kSumsOfTile / 4; i += kPrepareThreads) sums[i + thread] = float4{};
  }
  float largest_dout = 0.0F, largest_delta = 0.0F;
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
    if (to.splits != nullptr && exists) {
      largest_delta = fmaxf(largest_delta, fabsf(delta));
#pragma unroll
      for (int c = 8 * chunk; c < kWidth; c += 64) {
        largest_dout = fmaxf(largest_dout, largest_of(Pack<Bf16, 8>::load(o.dout.at(b, s, h) + c)));
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
  if (to.splits != nullptr) {
    // Probabilities of a query sum up to 1 at most, but for rounding.
    __shared__ unsigned largest[2];
    if (thread < 2) largest[thread] = 0;
    __syncthreads();
    atomicMax(&largest[0], __float_as_uint(largest_dout));
    atomicMax(&largest[1], __float_as_uint(largest_delta));
    __syncthreads();
    const float of_gradients =
        kWidth * __uint_as_float(largest[0]) * __uint_as_float(to.largest[1]) +
        __uint_as_float(largest[1]);
    if (thread == 0) {
      to.splits[head * query_tiles + tile] =
          split_of(1.1F * of_gradients * __uint_as_float(to.largest[0]));
    }
  }
  if (h != 0) return;
  // Documents begin later and later: tiles of queries that see the keys are the first ones.
  for (int key_tile = tile; key_tile < key_tiles; key_tile += query_tiles) {
    const int first_key = key_tile * kKeyTile, last_key = first_key + kKeyTile - 1;
    const int begin =
        first_query_tile(first_key, static_cast<int>(p.query_offset), p.jump, p.jump_at);
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

/// A thread's share of the sums of 64 queries and 64 columns: as a product has them. Of exact sums
/// the other ones lie `rest` further on; 0: there are none.
__device__ __forceinline__ void load_sums(const float4* from, int rest, float (&sums)[32]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int at = kFinishThreads * i + static_cast<int>(threadIdx.x);
    const float4 four = from[at], left = rest > 0 ? from[at + rest] : float4{};
    sums[4 * i] = four.x + left.x;
    sums[4 * i + 1] = four.y + left.y;
    sums[4 * i + 2] = four.z + left.z;
    sums[4 * i + 3] = four.w + left.w;
  }
}

/// Writes or adds to dq, which a product's order would touch in pieces of 64 bytes: rows are made
/// in shared memory first.
template <int kWidth>
__device__ __forceinline__ void put_rows(const float4* from, int rest, float scale, bool adds,
                                         float* dq, std::int64_t stride, int rows) {
  constexpr int kLanes = kWidth / 4;  // of a row
  __shared__ float tile[kQueryTile][kWidth + 8];
#pragma unroll
  for (int column = 0; column < kWidth; column += 64, from += 8 * kFinishThreads) {
    float sums[32];
    load_sums(from, rest, sums);
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

/// dq from its sums, of which a tile has one or, exact ones, two; a block per 64 queries of a head.
/// `adds`: of blocks, else it is written.
template <int kWidth, bool kIsBlock>
__global__ void __launch_bounds__(kFinishThreads)
    finish_kernel(const float* dq_sums, HeadView<ResultOf<Bf16, kIsBlock>> dq, int queries,
                  int heads, int sum_tiles, int parts, float scale, bool adds) {
  const int h = static_cast<int>(blockIdx.x) % heads, b = static_cast<int>(blockIdx.y);
  const int tile = static_cast<int>(blockIdx.x) / heads, first = tile * kQueryTile;
  const std::int64_t head = static_cast<std::int64_t>(b) * heads + h;
  constexpr int kSums = kQueryTile * kWidth;
  const auto* from =
      reinterpret_cast<const float4*>(dq_sums + (head * sum_tiles + tile) * parts * kSums);
  const int rest = (parts - 1) * kSums / 4;
  if constexpr (kIsBlock) {
    put_rows<kWidth>(from, rest, scale, adds, dq.at(b, first, h), dq.position, queries - first);
  } else {
#pragma unroll
    for (int column = 0; column < kWidth; column += 64, from += 8 * kFinishThreads) {
      float sums[32];
      load_sums(from, rest, sums);
      put_sums(sums, scale, dq.at(b, first, h) + column, dq.position, queries - first);
    }
  }
}

/// dk or dv of whole sequences from its sums, [batch][keys][groups][parts][128], of which a
/// key/value head's are added up in their order; a thread per 8 columns.
static __global__ void __launch_bounds__(kPrepareThreads)
    round_keys_kernel(const float* sums, HeadView<Bf16> to, int keys, int groups, int parts,
                      std::int64_t count) {
  const std::int64_t chunk = static_cast<std::int64_t>(blockIdx.x) * kPrepareThreads + threadIdx.x;
  if (8 * chunk >= count) return;
  const std::int64_t row = chunk / 16, position = row / groups, column = chunk % 16 * 8;
  float sum[8] = {};
  for (int part = 0; part < parts; ++part) {
    const float* const from = sums + (row * parts + part) * 128 + column;
    const auto x = Pack<float, 4>::load(from), y = Pack<float, 4>::load(from + 4);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sum[i] += x.get(i);
      sum[i + 4] += y.get(i);
    }
  }
  Pack<Bf16, 8> rounded;
#pragma unroll
  for (int i = 0; i < 8; ++i) rounded.set(i, sum[i]);
  rounded.store(
      to.at(static_cast<int>(position / keys), position % keys, static_cast<int>(row % groups)) +
      column);
}

}  // namespace heddle::ops::cuda::hopper
