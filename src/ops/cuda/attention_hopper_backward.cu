#include "ops/cuda/attention_blocks.h"
#include "ops/cuda/attention_hopper_backward.h"
#include "ops/cuda/attention_hopper_backward_kernel.h"
#include "ops/cuda/stream_state.h"
#include "ops/cuda/tensor_map.h"

namespace heddle::ops::cuda {
namespace {

using hopper::kKeyTile, hopper::kQueryTile;

constexpr int kPrepareThreads = 256, kFinishThreads = 128;
constexpr int kSumsOfTile = kQueryTile * 64;

/// What the kernel wants, as it wants it.
struct Prepared {
  float *lse, *delta, *dq_sums;
  int *first_keys, *tile_ends, *next_job;
};

/// A block per 64 queries of a head: delta = the sum of dout * out, lse, and cleared sums of dq.
/// Those of head 0 also copy the first keys and find what queries see keys.
__global__ void __launch_bounds__(kPrepareThreads)
    prepare_kernel(Problem p, HeadView<const Bf16> dout, HeadView<const Bf16> out, const float* lse,
                   int query_tiles, int key_tiles, Prepared to) {
  const int h = static_cast<int>(blockIdx.x) % p.heads, b = static_cast<int>(blockIdx.y);
  const int tile = static_cast<int>(blockIdx.x) / p.heads;
  const int thread = static_cast<int>(threadIdx.x), chunk = thread % 8;
  const std::int64_t head = static_cast<std::int64_t>(b) * p.heads + h;
  const auto positions = static_cast<int>(p.queries);

  auto* const sums =
      reinterpret_cast<float4*>(to.dq_sums + (head * query_tiles + tile) * kSumsOfTile);
#pragma unroll
  for (int i = 0; i < kSumsOfTile / 4; i += kPrepareThreads) sums[i + thread] = float4{};
#pragma unroll
  for (int i = 0; i < kQueryTile; i += kPrepareThreads / 8) {
    const int row = i + thread / 8, s = tile * kQueryTile + row;
    float sum = 0.0F;
    if (s < positions) {
      const auto x = Pack<Bf16, 8>::load(dout.at(b, s, h) + 8 * chunk);
      const auto y = Pack<Bf16, 8>::load(out.at(b, s, h) + 8 * chunk);
#pragma unroll
      for (int j = 0; j < 8; ++j) sum += x.get(j) * y.get(j);
    }
#pragma unroll
    for (int other = 1; other < 8; other *= 2) sum += __shfl_xor_sync(0xffffffffU, sum, other);
    const int place = tile * kQueryTile + hopper::LaneValues<float>::place(row);
    if (chunk == 0) {
      const std::int64_t at = head * query_tiles * kQueryTile + place;
      to.delta[at] = sum;
      to.lse[at] = s < positions ? lse[p.row(b, h, s)] * kLog2E : INFINITY;
    }
    if (chunk == 1 && h == 0 && p.first_key != nullptr) {
      to.first_keys[b * query_tiles * kQueryTile + place] =
          static_cast<int>(p.first_of(b, min(s, positions - 1)));
    }
  }
  if (h != 0 || tile % 2 != 0) return;
  // Documents begin later and later: tiles of queries that see the keys are the first ones.
  const int last_key = (tile + 2) * kQueryTile - 1;
  int end = tile + 1;
  for (int first = tile + 1; first < query_tiles; first += kPrepareThreads) {
    const int other = first + thread;
    end +=
        __syncthreads_count(other < query_tiles && p.first_of(b, other * kQueryTile) <= last_key);
  }
  if (thread == 0) to.tile_ends[b * key_tiles + tile / 2] = end;
  if (blockIdx.x == 0 && b == 0 && thread == 0) *to.next_job = 0;
}

/// dq from its sums; a block per 64 queries of a head.
__global__ void __launch_bounds__(kFinishThreads)
    finish_kernel(const float* dq_sums, HeadView<Bf16> dq, int positions, int heads,
                  int query_tiles, float scale) {
  const int h = static_cast<int>(blockIdx.x) % heads, b = static_cast<int>(blockIdx.y);
  const int tile = static_cast<int>(blockIdx.x) / heads, first = tile * kQueryTile;
  const std::int64_t head = static_cast<std::int64_t>(b) * heads + h;
  const auto* const from =
      reinterpret_cast<const float4*>(dq_sums + (head * query_tiles + tile) * kSumsOfTile);
  float sums[32];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float4 four = from[kFinishThreads * i + threadIdx.x];
    sums[4 * i] = four.x;
    sums[4 * i + 1] = four.y;
    sums[4 * i + 2] = four.z;
    sums[4 * i + 3] = four.w;
  }
  hopper::store_sums(sums, scale, dq.at(b, first, h), dq.position, positions - first);
}

hopper::KeyGradients gradients_of(const Tensor& t_BSGK) {
  const HeadView<Bf16> view(t_BSGK);
  return {view.data, view.batch, view.position, view.head};
}

hopper::BackwardJobs jobs_of(const Problem& p, std::int64_t batch) {
  const auto positions = static_cast<int>(p.queries);
  return {.heads = p.heads,
          .groups = p.groups,
          .per_group = p.heads / p.groups,
          .positions = positions,
          .query_tiles = (positions + kQueryTile - 1) / kQueryTile,
          .key_tiles = (positions + kKeyTile - 1) / kKeyTile,
          .group_count = static_cast<int>(batch) * p.groups,
          // Enough to fill the card with blocks of which the longest start first; few enough for
          // the sums of dq that are added to at a time to stay in the cache.
          .chunk = 16};
}

Prepared carve(Carver& carver, const hopper::BackwardJobs& jobs, std::int64_t batch) {
  const std::int64_t padded = static_cast<std::int64_t>(jobs.query_tiles) * kQueryTile;
  const std::int64_t rows = batch * jobs.heads * padded;
  return {.lse = carver.take<float>(rows),
          .delta = carver.take<float>(rows),
          .dq_sums = carver.take<float>(rows * 64),
          .first_keys = carver.take<int>(batch * padded),
          .tile_ends = carver.take<int>(batch * jobs.key_tiles),
          .next_job = carver.take<int>(1)};
}

bool suits(const Problem& p, std::int64_t batch, std::initializer_list<const Tensor*> tensors) {
  constexpr std::int64_t kMostRows = std::int64_t{1} << 30;
  return suits_tensor_cores(p, tensors) && p.width == 64 && p.query_offset == 0 &&
         p.keys == p.queries && batch * p.heads * p.queries <= kMostRows;
}

void launch(const hopper::BackwardTensors& tensors, bool has_documents, const StreamState& state) {
  const auto kernel =
      has_documents ? hopper::backward_kernel<true> : hopper::backward_kernel<false>;
  HEDDLE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   hopper::kBackwardBytes));
  const int blocks = std::min(state.processors, tensors.jobs.group_count * tensors.jobs.key_tiles);
  kernel<<<static_cast<unsigned>(blocks), hopper::kBackwardThreads, hopper::kBackwardBytes,
           state.stream>>>(tensors);
  HEDDLE_CUDA(cudaGetLastError());
}

}  // namespace

bool hopper_attention_backward(const Problem& problem, const Tensor& dout_BSHK,
                               const Tensor& q_BSHK, const Tensor& k_BSGK, const Tensor& v_BSGK,
                               const Tensor& out_BSHK, const Tensor& lse_BHS, const Tensor& dq_BSHK,
                               const Tensor& dk_BSGK, const Tensor& dv_BSGK, Stream& stream) {
  const std::int64_t batch = q_BSHK.size(0);
  if (stream.is_deterministic() ||
      !suits(problem, batch,
             {&dout_BSHK, &q_BSHK, &k_BSGK, &v_BSGK, &out_BSHK, &dq_BSHK, &dk_BSGK, &dv_BSGK})) {
    return false;
  }
  StreamState& state = state_of(stream);
  if (!state.is_hopper) return false;

  const hopper::BackwardJobs jobs = jobs_of(problem, batch);
  Carver sizes(nullptr);
  carve(sizes, jobs, batch);
  Carver parts(state.workspace.at_least(sizes.used_bytes()));
  const Prepared prepared = carve(parts, jobs, batch);
  const dim3 tiles(static_cast<unsigned>(jobs.query_tiles * jobs.heads),
                   static_cast<unsigned>(batch));
  prepare_kernel<<<tiles, kPrepareThreads, 0, state.stream>>>(
      problem, dout_BSHK, out_BSHK, device_data<float>(lse_BHS), jobs.query_tiles, jobs.key_tiles,
      prepared);
  HEDDLE_CUDA(cudaGetLastError());
  launch({.q = tensor_map(q_BSHK, {1, kQueryTile, 1, 64}),
          .k = tensor_map(k_BSGK, {1, kKeyTile, 1, 64}),
          .v = tensor_map(v_BSGK, {1, kKeyTile, 1, 64}),
          .dout = tensor_map(dout_BSHK, {1, kQueryTile, 1, 64}),
          .lse = prepared.lse,
          .delta = prepared.delta,
          .first_keys = prepared.first_keys,
          .tile_ends = prepared.tile_ends,
          .dq_sums = prepared.dq_sums,
          .next_job = prepared.next_job,
          .dk = gradients_of(dk_BSGK),
          .dv = gradients_of(dv_BSGK),
          .jobs = jobs,
          .scale = problem.scale,
          .scale_log2 = problem.scale * kLog2E},
         problem.first_key != nullptr, state);
  finish_kernel<<<tiles, kFinishThreads, 0, state.stream>>>(
      prepared.dq_sums, dq_BSHK, jobs.positions, jobs.heads, jobs.query_tiles, problem.scale);
  HEDDLE_CUDA(cudaGetLastError());
  return true;
}

}  // namespace heddle::ops::cuda
