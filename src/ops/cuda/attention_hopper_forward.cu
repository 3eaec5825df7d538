#include <algorithm>

#include "ops/cuda/attention_blocks.h"
#include "ops/cuda/attention_hopper_forward.h"
#include "ops/cuda/attention_hopper_forward_queries.h"
#include "ops/cuda/tensor_map.h"

namespace heddle::ops::cuda {
namespace {

using namespace hopper;

/// What a warpgroup does that computes.
template <class S>
__device__ __forceinline__ void compute(const ForwardWork<S::kIsBlock>& work,
                                        const ForwardMemory<S>& memory, int group) {
  Rows<S>(work, memory, group).meet_all();
  // Copies may still read shared memory, which is the block's only as long as it runs.
  if (threadIdx.x % 128 == 0) wait_for_stores<0>();
}

template <class S>
__global__ void __launch_bounds__(S::kThreads, 1)
    forward_kernel(const __grid_constant__ ForwardWork<S::kIsBlock> work) {
  extern __shared__ unsigned char raw[];
  const ForwardMemory<S> memory(raw);
  if (threadIdx.x == 0) memory.init();
  __syncthreads();
  const int group = uniform(static_cast<int>(threadIdx.x) / 128);
  if (group == S::kGroups) {
    give_registers<S::kCopyRegisters>();
    if (threadIdx.x % 128 < 32) ForwardCopies<S>(work, memory).run();
  } else {
    take_registers<S::kRegisters>();
    compute<S>(work, memory, group);
  }
}

bool sees_all(const Problem& p) { return p.first_key == nullptr && p.query_offset + 1 >= p.keys; }

/// Where all pieces are alike, the last ones are for fewer warpgroups if that takes less time: else
/// most processors might wait for the few that have one piece more.
template <class S>
void plan_last_pieces(ForwardWork<true>& work, int processors) {
  const Problem& p = work.problem;
  const auto ratio_up = [](int a, int b) { return (a + b - 1) / b; };
  const int units = ratio_up(static_cast<int>(p.queries), kRows) * (p.heads / p.groups);
  const int pieces = ratio_up(units, S::kGroups);
  const int full = pieces * work.pairs / processors * processors / work.pairs;
  work.full_pieces = 0;
  work.last_groups = S::kGroups;
  if (!sees_all(p) || work.together < work.pairs || full == pieces) return;
  double least = 1.0;  // in terms of a piece for all warpgroups
  for (int groups = 1; groups < S::kGroups; ++groups) {
    const int last_pieces = work.pairs * ratio_up(units - full * S::kGroups, groups);
    // One alone is as fast as a third of all, nearly.
    const double time = ratio_up(last_pieces, processors) * (groups + 0.3) / (S::kGroups + 0.3);
    if (time >= least) continue;
    least = time;
    work.full_pieces = full;
    work.last_groups = groups;
  }
}

template <class S>
void launch(ForwardWork<S::kIsBlock> work, StreamState& state) {
  if constexpr (S::kIsBlock) plan_last_pieces<S>(work, state.processors);
  HEDDLE_CUDA(cudaFuncSetAttribute(forward_kernel<S>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   S::kBytes));
  forward_kernel<S><<<state.processors, S::kThreads, S::kBytes, state.stream>>>(work);
  HEDDLE_CUDA(cudaGetLastError());
}

template <bool kIsBlock>
void run(const ForwardWork<kIsBlock>& work, StreamState& state) {
  const Problem& p = work.problem;
  const bool has_own_step = p.query_offset % kRows != 0 || p.jump % kRows != 0;
  const bool any_mask = p.first_key != nullptr || (has_own_step && !sees_all(p));
  if (p.cap > 0.0F) {
    p.width == 64 ? launch<ForwardShape<64, true, kIsBlock, true>>(work, state)
                  : launch<ForwardShape<128, true, kIsBlock, true>>(work, state);
  } else if (p.width == 64) {
    any_mask ? launch<ForwardShape<64, true, kIsBlock>>(work, state)
             : launch<ForwardShape<64, false, kIsBlock>>(work, state);
  } else {
    any_mask ? launch<ForwardShape<128, true, kIsBlock>>(work, state)
             : launch<ForwardShape<128, false, kIsBlock>>(work, state);
  }
}

}  // namespace

bool hopper_attention_forward(const Problem& problem, const Tensor& q_BSHK, const Tensor& k_BTGK,
                              const Tensor& v_BTGK, std::optional<KeyBlock> block,
                              const Tensor& out_BSHK, const Tensor& lse_BHS, Stream& stream) {
  StreamState& state = state_of(stream);
  if (!state.is_hopper || problem.queries < kRows || problem.keys == 0 ||
      (problem.width != 64 && problem.width != 128) || problem.jump_at % kRows != 0 ||
      !suits_tensor_cores(problem, {&q_BSHK, &k_BTGK, &v_BTGK, &out_BSHK})) {
    return false;
  }
  // As much as stays in the second-level cache while it is needed.
  constexpr std::int64_t kCachedBytes = std::int64_t{64} << 20;
  const std::int64_t pairs = q_BSHK.size(0) * problem.groups;
  const std::int64_t pair_bytes = 4 * problem.keys * problem.width;
  const std::int64_t together = std::clamp<std::int64_t>(kCachedBytes / pair_bytes, 1, pairs);
  const bool caps = problem.cap > 0.0F;
  const auto tiles = [](const Tensor& t, int rows) { return tensor_map(t, {1, rows, 1, 64}); };
  const auto run_kind = [&](auto is_block) {
    constexpr bool kIsBlock = is_block();
    run(ForwardWork<kIsBlock>{.q = tiles(q_BSHK, kRows),
                              .k = tiles(k_BTGK, kTileKeys),
                              .v = tiles(v_BTGK, kTileKeys),
                              .out = kIsBlock ? CUtensorMap{} : tiles(out_BSHK, kRows),
                              .sums = kIsBlock ? HeadView<float>(out_BSHK) : HeadView<float>(),
                              .merges = block == KeyBlock::further,
                              .problem = {problem},
                              .pairs = static_cast<int>(pairs),
                              .together = static_cast<int>(together),
                              .full_pieces = 0,
                              .last_groups = 0,
                              .scale = (caps ? problem.cap : problem.scale) * kLog2E,
                              .cap_factor = caps ? kTanhUnit * problem.scale / problem.cap : 0.0F,
                              .lse = lse_BHS,
                              .counter = state.work_counter,
                              .small_cap =
                                  caps ? SmallCap(problem.scale, problem.cap) : SmallCap()},
        state);
  };
  block ? run_kind(std::true_type{}) : run_kind(std::false_type{});
  return true;
}

}  // namespace heddle::ops::cuda
