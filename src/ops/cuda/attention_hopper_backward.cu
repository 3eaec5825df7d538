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

/// How dk and dv are made. Those of blocks are added in f32, so that jobs may have some of the
/// heads each. So are those of wide heads of whole sequences, which are rounded afterwards, unless
/// jobs are short, because of a window: then that takes longer than it saves.
template <int kWidth_, bool kIsBlock_, bool kAddsKeys_ = kIsBlock_ || kWidth_ == 128>
struct BackwardKind {
  static constexpr int kWidth = kWidth_;
  static constexpr bool kIsBlock = kIsBlock_, kAddsKeys = kAddsKeys_;
  static constexpr bool kRoundsKeys = kAddsKeys && !kIsBlock;
  static constexpr bool kMayBeExact = kAddsKeys || kWidth == 64;
};

/// All heads of a key/value head together where dk and dv are written, or added to what others left
/// and come in one order; else at most as many as leave enough jobs, of which some are short, to
/// fill the card. Of wide heads, one: jobs that are at nearly the same queries find these in the
/// cache, which makes a causal mask a twelfth faster.
template <class Kind>
int heads_per_job(const Problem& p, std::int64_t tiles_of_heads, bool is_exact, int processors) {
  int most = p.heads / p.groups;
  if (!Kind::kAddsKeys || (is_exact && Kind::kIsBlock)) return most;
  const bool sees_all = p.first_key == nullptr && p.query_offset + 1 >= p.keys;
  if (Kind::kWidth == 128 && !sees_all) return 1;
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

/// Of dk's and dv's sums of whole sequences: where they come in one order, each head has its own.
template <class Kind>
int key_parts(const Problem& p, bool is_exact) {
  return is_exact && Kind::kRoundsKeys ? p.heads / p.groups : 1;
}

template <class Kind>
hopper::BackwardJobs jobs_of(const Problem& p, std::int64_t batch, bool is_exact, int processors) {
  const auto queries = static_cast<int>(p.queries), keys = static_cast<int>(p.keys);
  const int key_tiles = (keys + kKeyTile - 1) / kKeyTile;
  const int per_job = heads_per_job<Kind>(p, batch * p.heads * key_tiles, is_exact, processors);
  return {.heads = p.heads,
          .groups = p.groups,
          .per_job = per_job,
          .share = key_parts<Kind>(p, is_exact) > 1 ? 1 : p.heads / p.groups,
          .queries = queries,
          .keys = keys,
          .offset = static_cast<int>(p.query_offset),
          .jump = p.jump,
          .jump_at = p.jump_at,
          .query_tiles = (queries + kQueryTile - 1) / kQueryTile,
          .key_tiles = key_tiles,
          .sum_tiles = (queries + kQueryTile - 1) / kQueryTile,
          .set_count = static_cast<int>(batch) * p.heads / per_job,
          .chunk = heads_at_a_time<Kind::kWidth>(keys)};
}

template <class Kind>
Prepared carve(Carver& carver, const hopper::BackwardJobs& jobs, std::int64_t batch,
               bool keeps_sums, bool is_exact) {
  const std::int64_t padded = static_cast<std::int64_t>(jobs.query_tiles) * kQueryTile;
  const std::int64_t rows = batch * jobs.heads * padded;
  const std::int64_t key_sums =
      Kind::kRoundsKeys ? batch * jobs.keys * jobs.heads / jobs.share * Kind::kWidth : 0;
  return {.lse = carver.take<float>(rows),
          .delta = carver.take<float>(rows),
          .dq_sums =
              keeps_sums ? nullptr : carver.take<float>((is_exact ? 2 : 1) * rows * Kind::kWidth),
          .dk_sums = carver.take<float>(key_sums),
          .dv_sums = carver.take<float>(key_sums),
          .first_keys = carver.take<int>(batch * padded),
          .tile_ends = carver.take<int>(batch * jobs.key_tiles),
          .next_job = carver.take<int>(1),
          .splits = is_exact ? carver.take<float>(rows / kQueryTile) : nullptr,
          .largest = is_exact ? carver.take<unsigned>(2) : nullptr};
}

bool suits(const Problem& p, const BackwardCall& call) {
  constexpr std::int64_t kMostRows = std::int64_t{1} << 30;
  return suits_tensor_cores(p, {&call.dout_BSHK, &call.q_BSHK, &call.k_BTGK, &call.v_BTGK,
                                &call.dq_BSHK, &call.dk_BTGK, &call.dv_BTGK}) &&
         (p.width == 64 || p.width == 128) && p.jump_at % kQueryTile == 0 &&
         (call.is_block() || is_aligned(*call.out_BSHK)) &&
         call.batch() * p.heads * std::max(p.queries, p.keys) <= kMostRows;
}

/// Exact sums have no caps, which deterministic streams leave to other kernels.
template <class Kind, bool kExact, bool kCaps>
auto kernel_of(bool has_documents) {
  constexpr bool kAddsKeys = Kind::kAddsKeys;
  if constexpr (Kind::kWidth == 64) {
    return has_documents ? hopper::backward_kernel<true, kExact, kCaps, kAddsKeys>
                         : hopper::backward_kernel<false, kExact, kCaps, kAddsKeys>;
  } else if constexpr (kAddsKeys) {
    return has_documents ? hopper::wide_backward_kernel<true, kExact, kCaps, true>
                         : hopper::wide_backward_kernel<false, kExact, kCaps, true>;
  } else {
    return hopper::wide_backward_kernel<true, kExact, kCaps, false>;  // a window has first keys
  }
}

template <class Kind>
auto kernel_for(const Problem& problem, bool is_exact) {
  const bool has_documents = problem.first_key != nullptr;
  if constexpr (Kind::kMayBeExact) {
    if (is_exact) return kernel_of<Kind, true, false>(has_documents);
  }
  return problem.cap > 0.0F ? kernel_of<Kind, false, true>(has_documents)
                            : kernel_of<Kind, false, false>(has_documents);
}

template <class Kind>
void launch(const hopper::BackwardTensors<Kind::kAddsKeys>& tensors, const Problem& problem,
            bool is_exact, const StreamState& state) {
  using S = hopper::BackwardShape<Kind::kWidth>;
  constexpr int kBytes = hopper::kBackwardBytes<S>;
  const auto kernel = kernel_for<Kind>(problem, is_exact);
  HEDDLE_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  const int blocks = std::min(state.processors, tensors.jobs.set_count * tensors.jobs.key_tiles);
  kernel<<<static_cast<unsigned>(blocks), S::kThreads, kBytes, state.stream>>>(tensors);
  HEDDLE_CUDA(cudaGetLastError());
}

/// What the splits of exact sums follow from, of keys and values.
template <int kWidth>
void find_largest(const BackwardCall& call, unsigned* largest, const StreamState& state) {
  HEDDLE_CUDA(cudaMemsetAsync(largest, 0, 2 * sizeof *largest, state.stream));
  const std::int64_t rows = call.k_BTGK.count() / kWidth;
  const auto blocks = static_cast<unsigned>(
      std::min<std::int64_t>(blocks_for(rows * kWidth / 8, kPrepareThreads), 8 * state.processors));
  largest_kernel<kWidth><<<blocks, kPrepareThreads, 0, state.stream>>>(
      call.k_BTGK, call.v_BTGK, rows, static_cast<int>(call.k_BTGK.size(1)),
      static_cast<int>(call.k_BTGK.size(2)), largest);
  HEDDLE_CUDA(cudaGetLastError());
}

/// From the sums of a head to the next one's, in tiles.
int tiles_between_heads(const Tensor& sums_BHNX) {
  return static_cast<int>(sums_BHNX.stride(1) / sums_BHNX.size(3));
}

/// `keeps_sums`: of a block, with sums in place of dq.
template <class Kind>
void run(const Problem& problem, const BackwardCall& call, bool keeps_sums, bool is_exact,
         StreamState& state) {
  constexpr int kWidth = Kind::kWidth;
  constexpr bool kIsBlock = Kind::kIsBlock, kRounds = Kind::kRoundsKeys;
  hopper::BackwardJobs jobs = jobs_of<Kind>(problem, call.batch(), is_exact, state.processors);
  Carver sizes(nullptr);
  carve<Kind>(sizes, jobs, call.batch(), keeps_sums, is_exact);
  Carver parts(state.workspace.at_least(sizes.used_bytes()));
  Prepared prepared = carve<Kind>(parts, jobs, call.batch(), keeps_sums, is_exact);
  if (is_exact) find_largest<kWidth>(call, prepared.largest, state);
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
  const bool caps = problem.cap > 0.0F;
  hopper::BackwardTensors<Kind::kAddsKeys> tensors{
      .q = tensor_map(call.q_BSHK, {1, kQueryTile, 1, 64}),
      .k = tensor_map(call.k_BTGK, {1, kKeyTile, 1, 64}),
      .v = tensor_map(call.v_BTGK, {1, kKeyTile, 1, 64}),
      .dout = tensor_map(call.dout_BSHK, {1, kQueryTile, 1, 64}),
      .lse = prepared.lse,
      .delta = prepared.delta,
      .first_keys = prepared.first_keys,
      .tile_ends = prepared.tile_ends,
      .dq_sums = prepared.dq_sums,
      .splits = prepared.splits,
      .rest = hopper::rest_of_split(jobs.key_tiles),
      .next_job = prepared.next_job,
      .dk = call.dk_BTGK,
      .dv = call.dv_BTGK,
      .jobs = jobs,
      .scale = problem.scale,
      .scale_log2 = (caps ? problem.cap : problem.scale) * kLog2E,
      .cap_factor = caps ? kTanhUnit * problem.scale / problem.cap : 0.0F,
      .small_cap = caps ? SmallCap(problem.scale, problem.cap) : SmallCap()};
  const std::int64_t key_values = call.k_BTGK.count();
  const int parts_of_keys = key_parts<Kind>(problem, is_exact);
  if constexpr (kRounds) {
    const auto sums = [&](float* of) {
      const auto bytes = static_cast<std::size_t>(key_values) * 4 * parts_of_keys;
      HEDDLE_CUDA(cudaMemsetAsync(of, 0, bytes, state.stream));
      const std::int64_t position = problem.groups * parts_of_keys * kWidth;
      return HeadView<float>(of, problem.keys * position, position, kWidth);
    };
    tensors.dk = sums(prepared.dk_sums);
    tensors.dv = sums(prepared.dv_sums);
  }
  launch<Kind>(tensors, problem, is_exact, state);
  if constexpr (kRounds) {
    const auto round = [&](const float* sums, const Tensor& to) {
      round_keys_kernel<<<blocks_for(key_values / 8, kPrepareThreads), kPrepareThreads, 0,
                          state.stream>>>(sums, to, jobs.keys, jobs.groups, parts_of_keys,
                                          key_values);
      HEDDLE_CUDA(cudaGetLastError());
    };
    round(prepared.dk_sums, call.dk_BTGK);
    round(prepared.dv_sums, call.dv_BTGK);
  }
  if (keeps_sums) return;
  finish_kernel<kWidth, kIsBlock><<<tiles, kFinishThreads, 0, state.stream>>>(
      prepared.dq_sums, call.dq_BSHK, jobs.queries, jobs.heads, jobs.sum_tiles, is_exact ? 2 : 1,
      problem.scale, true);
  HEDDLE_CUDA(cudaGetLastError());
}

/// A window that makes them so, and enough key/value heads to fill the card with jobs of all their
/// heads.
bool has_short_jobs(const Problem& p, std::int64_t batch, int processors) {
  const std::int64_t key_tiles = (p.keys + kKeyTile - 1) / kKeyTile;
  constexpr std::int64_t kShort = 2048;
  return p.window > 0 && p.window <= kShort && batch * p.groups * key_tiles >= 2 * processors;
}

/// Kernels with exact sums are for queries in one stretch and scores without a cap.
bool can_be_exact(const Problem& p) { return p.cap == 0.0F && p.jump == 0; }

/// Sums that stay from call to call are never exact: of each call only its own are.
bool keeps(Stream& stream) { return !stream.is_deterministic() && state_of(stream).is_hopper; }

}  // namespace

bool hopper_attention_backward(const Problem& problem, const BackwardCall& call, Stream& stream) {
  StreamState& state = state_of(stream);
  if (!suits(problem, call) || !state.is_hopper) return false;
  const bool is_exact = stream.is_deterministic();
  if (is_exact && !can_be_exact(problem)) return false;
  if (problem.width == 64) {
    call.is_block() ? run<BackwardKind<64, true>>(problem, call, false, is_exact, state)
                    : run<BackwardKind<64, false>>(problem, call, false, is_exact, state);
  } else if (call.is_block()) {
    run<BackwardKind<128, true>>(problem, call, false, is_exact, state);
  } else {
    const bool is_short = !is_exact && has_short_jobs(problem, call.batch(), state.processors);
    is_short ? run<BackwardKind<128, false, false>>(problem, call, false, false, state)
             : run<BackwardKind<128, false>>(problem, call, false, is_exact, state);
  }
  return true;
}

std::int64_t hopper_query_sum_tile(const Tensor& q_BSHK, Stream& stream) {
  const bool suits =
      q_BSHK.dtype() == DType::bf16 && (q_BSHK.size(3) == 64 || q_BSHK.size(3) == 128);
  return suits && keeps(stream) ? kQueryTile : 0;
}

bool hopper_attention_backward_to_sums(const Problem& problem, const BackwardCall& call,
                                       Stream& stream) {
  if (!suits(problem, call) || !keeps(stream)) return false;
  StreamState& state = state_of(stream);
  problem.width == 64 ? run<BackwardKind<64, true>>(problem, call, true, false, state)
                      : run<BackwardKind<128, true>>(problem, call, true, false, state);
  return true;
}

void hopper_query_grads(const Tensor& sums_BHNX, double scale, bool adds, const Tensor& dq_BSHK,
                        Stream& stream) {
  const auto queries = static_cast<int>(dq_BSHK.size(1)), heads = static_cast<int>(dq_BSHK.size(2));
  const dim3 tiles(static_cast<unsigned>((queries + kQueryTile - 1) / kQueryTile * heads),
                   static_cast<unsigned>(dq_BSHK.size(0)));
  const auto kernel = dq_BSHK.size(3) == 64 ? finish_kernel<64, true> : finish_kernel<128, true>;
  kernel<<<tiles, kFinishThreads, 0, state_of(stream).stream>>>(
      device_data<float>(sums_BHNX), dq_BSHK, queries, heads, tiles_between_heads(sums_BHNX), 1,
      static_cast<float>(scale), adds);
  HEDDLE_CUDA(cudaGetLastError());
}

}  // namespace heddle::ops::cuda
