#include "ops/cuda/attention_blocks.h"
#include "ops/cuda/attention_hopper_backward.h"
#include "ops/cuda/attention_hopper_backward_narrow.h"
#include "ops/cuda/attention_hopper_backward_rows.h"
#include "ops/cuda/attention_hopper_backward_wide.h"
#include "ops/cuda/stream_state.h"
#include "ops/cuda/tensor_map.h"

namespace heddle::ops::cuda {
namespace {

using namespace hopper;

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
          .sum_tiles = (queries + kQueryTile - 1) / kQueryTile,
          .set_count = static_cast<int>(batch) * p.heads / per_job,
          .chunk = heads_at_a_time<kWidth>(keys)};
}

template <int kWidth, bool kIsBlock>
Prepared carve(Carver& carver, const hopper::BackwardJobs& jobs, std::int64_t batch,
               bool keeps_sums) {
  const std::int64_t padded = static_cast<std::int64_t>(jobs.query_tiles) * kQueryTile;
  const std::int64_t rows = batch * jobs.heads * padded;
  const std::int64_t key_sums =
      kIsBlock || !kAddsKeys<kWidth, kIsBlock> ? 0 : batch * jobs.keys * jobs.groups * kWidth;
  return {.lse = carver.take<float>(rows),
          .delta = carver.take<float>(rows),
          .dq_sums = keeps_sums ? nullptr : carver.take<float>(rows * kWidth),
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

/// From the sums of a head to the next one's, in tiles.
int tiles_between_heads(const Tensor& sums_BHNX) {
  return static_cast<int>(sums_BHNX.stride(1) / sums_BHNX.size(3));
}

/// `keeps_sums`: of a block, with sums in place of dq.
template <int kWidth, bool kIsBlock>
void run(const Problem& problem, const BackwardCall& call, bool keeps_sums, StreamState& state) {
  constexpr bool kAdds = kAddsKeys<kWidth, kIsBlock>, kRounds = kAdds && !kIsBlock;
  hopper::BackwardJobs jobs = jobs_of<kWidth, kIsBlock>(problem, call.batch(), state.processors);
  Carver sizes(nullptr);
  carve<kWidth, kIsBlock>(sizes, jobs, call.batch(), keeps_sums);
  Carver parts(state.workspace.at_least(sizes.used_bytes()));
  Prepared prepared = carve<kWidth, kIsBlock>(parts, jobs, call.batch(), keeps_sums);
  if (keeps_sums) {
    prepared.dq_sums = device_data<float>(call.dq_BSHK);
    jobs.sum_tiles = tiles_between_heads(call.dq_BSHK);
  }
  const dim3 tiles(static_cast<unsigned>(jobs.query_tiles * jobs.heads),
                   static_cast<unsigned>(call.batch()));
  prepare_kernel<kWidth, kIsBlock><<<tiles, kPrepareThreads, 0, state.stream>>>(
      call.operands<Bf16, kIsBlock>(problem), jobs.query_tiles, jobs.key_tiles, keeps_sums,
      prepared);
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
  if (keeps_sums) return;
  finish_kernel<kWidth, kIsBlock>
      <<<tiles, kFinishThreads, 0, state.stream>>>(prepared.dq_sums, call.dq_BSHK, jobs.queries,
                                                   jobs.heads, jobs.sum_tiles, problem.scale, true);
  HEDDLE_CUDA(cudaGetLastError());
}

bool takes(Stream& stream) { return !stream.is_deterministic() && state_of(stream).is_hopper; }

}  // namespace

bool hopper_attention_backward(const Problem& problem, const BackwardCall& call, Stream& stream) {
  if (!suits(problem, call) || !takes(stream)) return false;
  StreamState& state = state_of(stream);
  if (problem.width == 64) {
    call.is_block() ? run<64, true>(problem, call, false, state)
                    : run<64, false>(problem, call, false, state);
  } else {
    call.is_block() ? run<128, true>(problem, call, false, state)
                    : run<128, false>(problem, call, false, state);
  }
  return true;
}

std::int64_t hopper_query_sum_tile(const Tensor& q_BSHK, Stream& stream) {
  const bool suits =
      q_BSHK.dtype() == DType::bf16 && (q_BSHK.size(3) == 64 || q_BSHK.size(3) == 128);
  return suits && takes(stream) ? kQueryTile : 0;
}

bool hopper_attention_backward_to_sums(const Problem& problem, const BackwardCall& call,
                                       Stream& stream) {
  if (!suits(problem, call) || !takes(stream)) return false;
  StreamState& state = state_of(stream);
  problem.width == 64 ? run<64, true>(problem, call, true, state)
                      : run<128, true>(problem, call, true, state);
  return true;
}

void hopper_query_grads(const Tensor& sums_BHNX, double scale, bool adds, const Tensor& dq_BSHK,
                        Stream& stream) {
  const auto queries = static_cast<int>(dq_BSHK.size(1)), heads = static_cast<int>(dq_BSHK.size(2));
  const dim3 tiles(static_cast<unsigned>((queries + kQueryTile - 1) / kQueryTile * heads),
                   static_cast<unsigned>(dq_BSHK.size(0)));
  const auto kernel = dq_BSHK.size(3) == 64 ? finish_kernel<64, true> : finish_kernel<128, true>;
  kernel<<<tiles, kFinishThreads, 0, state_of(stream).stream>>>(
      device_data<float>(sums_BHNX), dq_BSHK, queries, heads, tiles_between_heads(sums_BHNX),
      static_cast<float>(scale), adds);
  HEDDLE_CUDA(cudaGetLastError());
}

}  // namespace heddle::ops::cuda
