#include "planner/candidate.h"

#include <array>

#include "base/error.h"

namespace heddle::planner {

const char* name_of(Recompute recompute) {
  static constexpr std::array names = {"none", "selective", "full"};
  return names[static_cast<std::size_t>(recompute)];
}

Updates updates_named(std::string_view name) {
  if (name == "adamw") return Updates::adamw;
  if (name == "sgd") return Updates::sgd;
  if (name == "muon") return Updates::muon;
  fail(ErrorCode::usage, "there is no optimizer \"{}\"", name);
}

Stack Stack::heddle(DType compute, Updates updates) {
  Stack stack;
  stack.compute = compute;
  if (compute == DType::f32) stack.parameter_bytes = 4;
  const double master = compute == DType::f32 ? 0 : 4;
  stack.state_bytes = master + (updates == Updates::sgd ? 4 : 8);
  stack.inner_state_bytes = master + (updates == Updates::adamw ? 8 : 4);
  stack.whole_matrices = updates == Updates::muon;
  return stack;
}

Stack Stack::megatron() {
  Stack stack;
  stack.compute = DType::f16;
  stack.stores_scores = stack.regathers = stack.splits_messages = true;
  stack.balances_stages = stack.overlaps_gathers = stack.head_in_forward = false;
  stack.kernels_forward = 14;
  stack.kernels_backward = 28;
  stack.launches_forward = 30;
  stack.launches_backward = 45;
  stack.host_share = 1.0;
  return stack;
}

Schedule schedule_of(const Candidate& plan, std::int64_t microbatches) {
  const bool is_divided = plan.vocabulary == VocabularyPlacement::pipeline;
  return lower(make_schedule(heddle::name_of(plan.schedule),
                             {.ranks = plan.pp,
                              .microbatches = static_cast<int>(microbatches),
                              .chunks = plan.chunks,
                              .vocabulary = is_divided ? plan.vocabulary_algorithm : 0}));
}

ParallelRequest request_of(const Candidate& plan) {
  return {.dp = plan.dp,
          .tp = plan.tp,
          .pp = plan.pp,
          .zero = plan.zero,
          .sequence = plan.sequence,
          .vocabulary = plan.vocabulary,
          .vocabulary_algorithm = plan.vocabulary_algorithm,
          .schedule = std::string(heddle::name_of(plan.schedule)),
          .chunks = plan.chunks};
}

heddle::Device Stack::place() const {
  if (compute != DType::bf16) return {};
  return {heddle::Device::Kind::cuda, 0};
}

Candidate candidate_of(const ParallelPlan& plan, std::int64_t sequences, bool recomputes) {
  return {.tp = plan.tp,
          .pp = plan.pp,
          .dp = plan.mesh.size(Axis::dp),
          .chunks = plan.chunks,
          .schedule = pipeline_named(plan.schedule),
          .zero = plan.zero,
          .sequence = plan.sequence,
          .vocabulary = plan.vocabulary,
          .vocabulary_algorithm = plan.vocabulary_algorithm,
          .recompute = recomputes ? Recompute::full : Recompute::none,
          .sequences = static_cast<int>(sequences)};
}

}  // namespace heddle::planner
