#include "ops/cuda/attention_blocks.h"
#include "ops/cuda/attention_hopper_backward.h"
#include "ops/cuda/attention_hopper_backward_narrow.h"
#include "ops/cuda/attention_hopper_backward_wide.h"
#include "ops/cuda/stream_state.h"
#include "ops/cuda/tensor_map.h"

namespace heddle::ops::cuda {
namespace {

using hopper::kKeyTile, hopper::kQueryTile;

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
/// cleared sums of dq. Those of head 0 also copy the first keys and find what queries see keys.
template <int kWidth, bool kIsBlock>
__global__ void __launch_bounds__(kPrepareThreads)
    prepare_kernel(BackwardOperands<Bf16, kIsBlock> o, int query_tiles, int key_tiles,
                   Prepared to) {
  const auto& p = o.problem;
  const int h = static_cast<int>(blockIdx.x) % p.heads, b = static_cast<int>(blockIdx.y);
  const int tile = static_cast<int>(blockIdx.x) / p.heads;
  const int thread = static_cast<int>(threadIdx.x), chunk = thread % 8;
  const std::int64_t head = static_cast<std::int64_t>(b) * p.heads + h;
  const auto queries = static_cast<int>(p.queries);

  constexpr int kSumsOfTile = kQueryTile * kWidth;
  auto* const sums =
      reinterpret_cast<float4*>(to.dq_sums + (head * query_tiles + tile) * kSumsOfTile);
#pragma unroll
  for (int i = 0; i < kSumsOfTile / 4; i += kPrepareThreads) sums[i + thread] = float4{};
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
    const int place = tile * kQueryTile + hopper::LaneValues<float>::place(row);
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
    const int begin = hopper::first_query_tile(first_key, static_cast<int>(p.query_offset));
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

/// Adds to dq, which a product's order would touch in pieces of 64 bytes: rows are made in shared
/// memory first.
template <int kWidth>
__device__ __forceinline__ void add_rows(const float4* from, float scale, float* dq,
                                         std::int64_t stride, int rows) {
  constexpr int kLanes = kWidth / 4;  // of a row
  __shared__ float tile[kQueryTile][kWidth + 8];
#pragma unroll
  for (int column = 0; column < kWidth; column += 64, from += 8 * kFinishThreads) {
    float sums[32];
    load_sums(from, sums);
#pragma unroll
    for (int i = 0; i < 32; i += 2) {
      *reinterpret_cast<float2*>(&tile[hopper::row_of(i)][column + hopper::column_of(i)]) = {
          scale * sums[i], scale * sums[i + 1]};
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
    const float4 old = *to;
    *to = {old.x + own.x, old.y + own.y, old.z + own.z, old.w + own.w};
  }
}

/// dq from its sums; a block per 64 queries of a head.
template <int kWidth, bool kIsBlock>
__global__ void __launch_bounds__(kFinishThreads)
    finish_kernel(const float* dq_sums, HeadView<ResultOf<Bf16, kIsBlock>> dq, int queries,
                  int heads, int query_tiles, float scale) {
  const int h = static_cast<int>(blockIdx.x) % heads, b = static_cast<int>(blockIdx.y);
  const int tile = static_cast<int>(blockIdx.x) / heads, first = tile * kQueryTile;
  const std::int64_t head = static_cast<std::int64_t>(b) * heads + h;
  const auto* from =
      reinterpret_cast<const float4*>(dq_sums + (head * query_tiles + tile) * kQueryTile * kWidth);
  if constexpr (kIsBlock) {
    add_rows<kWidth>(from, scale, dq.at(b, first, h), dq.position, queries - first);
  } else {
#pragma unroll
    for (int column = 0; column < kWidth; column += 64, from += 8 * kFinishThreads) {
      float sums[32];
      load_sums(from, sums);
      hopper::put_sums(sums, scale, dq.at(b, first, h) + column, dq.position, queries - first);
    }
  }
}

/// dk or dv of whole sequences from its sums, [batch][keys][groups][128]; a thread per 8 columns.
__global__ void __launch_bounds__(kPrepareThreads)
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

/// Whether dk and dv are added in f32, so that jobs may have some of their heads each. Of wide
/// heads they are for whole sequences too, and rounded afterwards.
template <int kWidth, bool kIsBlock>
constexpr bool kAddsKeys = kIsBlock || kWidth == 128;

/// All heads of a key/value head together where dk and dv are written, else at most as many as
/// leave enough jobs, of which some are short, to fill the card. Of wide heads, one: jobs that are
/// at nearly the same queries find these in the cache, which makes a causal mask a twelfth faster.
template <int kWidth, bool kIsBlock>
int heads_per_job(const Problem& p, std::int64_t tiles_of_heads, int processors) {
  int most = p.heads / p.groups;
  if (!kAddsKeys<kWidth, kIsBlock>) return most;
  const bool sees_all = p.first_key == nullptr && p.query_offset + 1 >= p.keys;
  if (kWidth == 128 && !sees_all) return 1;
  const std::int64_t enough = sees_all ? processors : 4 * processors;
  while (most % 2 == 0 && tiles_of_heads / most < enough) most /= 2;
  return most;
}

/// Enough to fill the card with blocks of which the longest start first; few enough for the sums of
/// dq that are added to at a time to stay in the cache.
template <int kWidth>
int heads_at_a_time(int keys) {
  constexpr int kUsual = kWidth == 128 ? 8 : 16, kUpTo = 1 << 16;
  return keys <= kUpTo ? kUsual : std::max(1, kUsual / ((keys + kUpTo - 1) / kUpTo));
}

template <int kWidth, bool kIsBlock>
hopper::BackwardJobs jobs_of(const Problem& p, std::int64_t batch, int processors) {
  const auto queries = static_cast<int>(p.queries), keys = static_cast<int>(p.keys);
  const int key_tiles = (keys + kKeyTile - 1) / kKeyTile;
  const int per_job = heads_per_job<kWidth, kIsBlock>(p, batch * p.heads * key_tiles, processors);
  return {.heads = p.heads,
          .groups = p.groups,
          .per_job = per_job,
          .queries = queries,
          .keys = keys,
          .offset = static_cast<int>(p.query_offset),
          .query_tiles = (queries + kQueryTile - 1) / kQueryTile,
          .key_tiles = key_tiles,
          .set_count = static_cast<int>(batch) * p.heads / per_job,
          .chunk = heads_at_a_time<kWidth>(keys)};
}

template <int kWidth, bool kIsBlock>
Prepared carve(Carver& carver, const hopper::BackwardJobs& jobs, std::int64_t batch) {
  const std::int64_t padded = static_cast<std::int64_t>(jobs.query_tiles) * kQueryTile;
  const std::int64_t rows = batch * jobs.heads * padded;
  const std::int64_t key_sums =
      kIsBlock || !kAddsKeys<kWidth, kIsBlock> ? 0 : batch * jobs.keys * jobs.groups * kWidth;
  return {.lse = carver.take<float>(rows),
          .delta = carver.take<float>(rows),
          .dq_sums = carver.take<float>(rows * kWidth),
          .dk_sums = carver.take<float>(key_sums),
          .dv_sums = carver.take<float>(key_sums),
          .first_keys = carver.take<int>(batch * padded),
          .tile_ends = carver.take<int>(batch * jobs.key_tiles),
          .next_job = carver.take<int>(1)};
}

bool suits(const Problem& p, const BackwardCall& call) {
  constexpr std::int64_t kMostRows = std::int64_t{1} << 30;
  return suits_tensor_cores(p, {&call.dout_BSHK, &call.q_BSHK, &call.k_BTGK, &call.v_BTGK,
                                &call.dq_BSHK, &call.dk_BTGK, &call.dv_BTGK}) &&
         (p.width == 64 || p.width == 128) && (call.is_block() || is_aligned(*call.out_BSHK)) &&
         call.batch() * p.heads * std::max(p.queries, p.keys) <= kMostRows;
}

template <int kWidth, bool kAddsKeys>
void launch(const hopper::BackwardTensors<kAddsKeys>& tensors, bool has_documents,
            const StreamState& state) {
  using S = hopper::BackwardShape<kWidth>;
  constexpr int kBytes = hopper::kBackwardBytes<S>;
  const auto kernel = [&] {
    if constexpr (kWidth == 64) {
      return has_documents ? hopper::backward_kernel<true, kAddsKeys>
                           : hopper::backward_kernel<false, kAddsKeys>;
    } else {
      return has_documents ? hopper::wide_backward_kernel<true>
                           : hopper::wide_backward_kernel<false>;
    }
  }();
  HEDDLE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const int blocks = std::min(state.processors, tensors.jobs.set_count * tensors.jobs.key_tiles);
  kernel<<<static_cast<unsigned>(blocks), S::kThreads, kBytes, state.stream>>>(tensors);
  HEDDLE_CUDA(cudaGetLastError());
}

template <int kWidth, bool kIsBlock>
void run(const Problem& problem, const BackwardCall& call, StreamState& state) {
  constexpr bool kAdds = kAddsKeys<kWidth, kIsBlock>, kRounds = kAdds && !kIsBlock;
  const hopper::BackwardJobs jobs =
      jobs_of<kWidth, kIsBlock>(problem, call.batch(), state.processors);
  Carver sizes(nullptr);
  carve<kWidth, kIsBlock>(sizes, jobs, call.batch());
  Carver parts(state.workspace.at_least(sizes.used_bytes()));
  const Prepared prepared = carve<kWidth, kIsBlock>(parts, jobs, call.batch());
  const dim3 tiles(static_cast<unsigned>(jobs.query_tiles * jobs.heads),
                   static_cast<unsigned>(call.batch()));
  prepare_kernel<kWidth, kIsBlock><<<tiles, kPrepareThreads, 0, state.stream>>>(
      call.operands<Bf16, kIsBlock>(problem), jobs.query_tiles, jobs.key_tiles, prepared);
  HEDDLE_CUDA(cudaGetLastError());
  hopper::BackwardTensors<kAdds> tensors{.q = tensor_map(call.q_BSHK, {1, kQueryTile, 1, 64}),
                                         .k = tensor_map(call.k_BTGK, {1, kKeyTile, 1, 64}),
                                         .v = tensor_map(call.v_BTGK, {1, kKeyTile, 1, 64}),
                                         .dout = tensor_map(call.dout_BSHK, {1, kQueryTile, 1, 64}),
                                         .lse = prepared.lse,
                                         .delta = prepared.delta,
                                         .first_keys = prepared.first_keys,
                                         .tile_ends = prepared.tile_ends,
                                         .dq_sums = prepared.dq_sums,
                                         .next_job = prepared.next_job,
                                         .dk = call.dk_BTGK,
                                         .dv = call.dv_BTGK,
                                         .jobs = jobs,
                                         .scale = problem.scale,
                                         .scale_log2 = problem.scale * kLog2E};
  const std::int64_t key_values = call.k_BTGK.count();
  if constexpr (kRounds) {
    const auto sums = [&](float* of) {
      HEDDLE_CUDA(cudaMemsetAsync(of, 0, static_cast<std::size_t>(key_values) * 4, state.stream));
      return HeadView<float>(of, problem.keys * problem.groups * kWidth, problem.groups * kWidth,
                             kWidth);
    };
    tensors.dk = sums(prepared.dk_sums);
    tensors.dv = sums(prepared.dv_sums);
  }
  launch<kWidth, kAdds>(tensors, problem.first_key != nullptr, state);
  if constexpr (kRounds) {
    const auto round = [&](const float* sums, const Tensor& to) {
      round_keys_kernel<<<blocks_for(key_values / 8, kPrepareThreads), kPrepareThreads, 0,
                          state.stream>>>(sums, to, jobs.keys, jobs.groups, key_values);
      HEDDLE_CUDA(cudaGetLastError());
    };
    round(prepared.dk_sums, call.dk_BTGK);
    round(prepared.dv_sums, call.dv_BTGK);
  }
  finish_kernel<kWidth, kIsBlock><<<tiles, kFinishThreads, 0, state.stream>>>(
      prepared.dq_sums, call.dq_BSHK, jobs.queries, jobs.heads, jobs.query_tiles, problem.scale);
  HEDDLE_CUDA(cudaGetLastError());
}

}  // namespace

bool hopper_attention_backward(const Problem& problem, const BackwardCall& call, Stream& stream) {
  if (stream.is_deterministic() || !suits(problem, call)) return false;
  StreamState& state = state_of(stream);
  if (!state.is_hopper) return false;
  if (problem.width == 64) {
    call.is_block() ? run<64, true>(problem, call, state) : run<64, false>(problem, call, state);
  } else {
    call.is_block() ? run<128, true>(problem, call, state) : run<128, false>(problem, call, state);
  }
  return true;
}

}  // namespace heddle::ops::cuda
