#include "planner/dry_block.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "model/rank_model.h"
#include "parallel/padding.h"
#include "parallel/sequence/context_program.h"
#include "planner/context_cost.h"

namespace heddle::planner {
namespace {

/// One of each kind that the model repeats, on one rank of tp, and of cp where that counts. Where
/// experts are divided, on as many replicas as that takes. Rows travel in one piece and on one
/// level: how many calls they are cut into is no part of a cost.
ParallelPlan one_of_each(const Job& job, const Candidate& candidate, int cp) {
  const int ranks = candidate.ep * candidate.etp, here = candidate.tp * cp;
  ParallelRequest request{.dp = ranks / std::gcd(ranks, here),
                          .tp = candidate.tp,
                          .cp = cp,
                          .ep = candidate.ep,
                          .etp = candidate.etp,
                          .sequence = candidate.sequence};
  // Only what layers exchange: with other codecs a block's parameters lie in two buffers.
  Compression compress = job.compress;
  compress.gradients = compress.weights = compress.pipeline = "none";
  if (candidate.divides_experts()) {
    const ExchangePlan plan = candidate.ep_exchange.plan(candidate.etp);
    request.ep_exchange =
        ExchangeRequest({.r = plan.r, .sends_again = plan.sends_again}, candidate.etp);
  } else {
    compress.experts = "none";
  }
  return lay_out(job.spec, request, {0}, {{1, 1 + static_cast<int>(job.spec.blocks.size())}}, false,
                 compress);
}

/// What the layers say of themselves, all kinds together.
Cost cost_of(const RankModel& model, const CostShape& shape) {
  Cost sum;
  for (const Layer* unit : model.layers) sum += unit->cost(shape);
  return sum;
}

/// Takes calls of experts that are divided over ranks out of a list.
std::vector<DryBlocks::ExpertCall> taken_from(std::vector<LayerCall>& calls, const Mesh& mesh) {
  std::vector<DryBlocks::ExpertCall> taken;
  for (const Axis axis : {Axis::ep, Axis::etp}) {
    if (mesh.size(axis) == 1) continue;
    for (const LayerCall& call : calls) {
      if (call.over == &mesh.comm(axis)) taken.push_back({axis, call});
    }
  }
  std::erase_if(calls, [&](const LayerCall& call) {
    return std::ranges::any_of(taken, [&](const auto& one) { return one.call.over == call.over; });
  });
  return taken;
}

/// The communicators end with the mesh.
void forget_communicators(DryBlocks& blocks) {
  for (auto* calls : {&blocks.cost.calls_f, &blocks.cost.calls_b, &blocks.recomputed.calls_f,
                      &blocks.recomputed.calls_b}) {
    for (LayerCall& call : *calls) call.over = nullptr;
  }
  for (auto* calls : {&blocks.experts_f, &blocks.experts_b}) {
    for (DryBlocks::ExpertCall& one : *calls) one.call.over = nullptr;
  }
}

/// Adds a parameter that lies at `at` in the buffer of a block of this kind.
void add_inner(const Parameter& parameter, int kind, std::int64_t at, DryBlocks& blocks) {
  if (!parameter.is_inner_matrix()) return;
  std::int64_t copied = 0;
  std::string last;  // several stretches of one tensor are one matrix
  for (const Parameter::Part& part : parameter.parts) {
    const bool is_copied = parameter.tail && part.at[0] >= parameter.tail->first_row;
    if (is_copied) copied += part.extent.count();
    if (std::exchange(last, part.name) == part.name) continue;
    blocks.inner_matrices.push_back({kind, part.whole, is_copied ? blocks.copies : 1});
  }
  blocks.inner_parameters.push_back({kind, at, parameter.shape.count(), copied});
}

}  // namespace

double DryBlocks::inner_elements() const {
  std::int64_t sum = 0;
  for (const InnerParameter& parameter : inner_parameters) sum += padded(parameter.count);
  return static_cast<double>(sum) / kinds;
}

CostShape cost_shape(const Job& job, const Candidate& candidate) {
  CostShape shape{.sequences = candidate.sequences,
                  .seq_len = job.seq_len,
                  .dtype = job.stack.compute,
                  .residual_ranks = candidate.sequence ? candidate.tp : 1};
  if (candidate.cp == 1) return shape;
  constexpr int kFirst = 0;
  shape.context =
      make_rank_context(context_shape(job, candidate), kFirst, nullptr, job.spec.windows());
  shape.share_tokens = tokens_in(shape.context->plan.held[kFirst]);
  return shape;
}

DryBlocks dry_blocks(const Job& job, const Candidate& candidate, double expert_rows) {
  Memory memory(Memory::Mode::dry, job.stack.place());
  const auto build = [&](ParallelPlan laid_out, const Mesh& on, bool recomputes) {
    laid_out.planned_expert_rows = expert_rows;
    return build_rank_model(
        job.spec, {.dtype = job.stack.compute, .positions = 1, .recompute_blocks = recomputes},
        laid_out, on, ParamStore::Purpose::inference, memory);
  };
  // Parameters do not depend on cp, but their padding would.
  const ParallelPlan plan = one_of_each(job, candidate, 1);
  const Mesh mesh = Mesh::recorded(plan.mesh, 0);
  const RankModel model = build(plan, mesh, false);
  // Costs do depend on it.
  const ParallelPlan shared = one_of_each(job, candidate, candidate.cp);
  const Mesh ranks = Mesh::recorded(shared.mesh, 0);
  const CostShape shape = cost_shape(job, candidate);
  DryBlocks sum;
  const bool is_same = candidate.cp == 1;
  const Mesh& of_cost = is_same ? mesh : ranks;
  sum.cost = is_same ? cost_of(model, shape) : cost_of(build(shared, ranks, false), shape);
  sum.recomputed = cost_of(build(shared, ranks, true), shape);
  sum.experts_f = taken_from(sum.cost.calls_f, of_cost);
  sum.experts_b = taken_from(sum.cost.calls_b, of_cost);
  taken_from(sum.recomputed.calls_f, ranks);
  taken_from(sum.recomputed.calls_b, ranks);
  forget_communicators(sum);
  sum.kinds = static_cast<int>(model.layers.size());
  sum.copies = plan.mesh.size(Axis::copy);
  std::map<const Parameter*, int> kinds;
  for (int kind = 0; kind < sum.kinds; ++kind) {
    model.layers[static_cast<std::size_t>(kind)]->visit(
        [&](const Parameter& parameter) { kinds[&parameter] = kind; });
  }
  int last = -1;
  std::int64_t at = 0;
  for (const Parameter* parameter : model.store->parameters()) {
    const int kind = kinds.at(parameter);
    if (parameter->layout.view == View::experts) {
      sum.expert_elements += padded(parameter->shape.count());
      continue;
    }
    if (std::exchange(last, kind) != kind) at = 0;
    add_inner(*parameter, kind, at, sum);
    at += padded(parameter->shape.count());
    sum.elements += padded(parameter->shape.count());
  }
  return sum;
}

}  // namespace heddle::planner
