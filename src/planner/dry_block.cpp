#include "planner/dry_block.h"

#include <algorithm>
#include <utility>

#include "model/rank_model.h"
#include "parallel/padding.h"
#include "parallel/sequence/context_program.h"
#include "planner/context_cost.h"

namespace heddle::planner {
namespace {

/// One of each kind that the model repeats, on one rank of tp, and of cp where that counts.
ParallelPlan one_of_each(const Job& job, const Candidate& candidate, int cp) {
  const ParallelRequest request{
      .dp = 1, .tp = candidate.tp, .cp = cp, .sequence = candidate.sequence};
  // Only what layers exchange: with other codecs a block's parameters lie in two buffers.
  Compression compress = job.compress;
  compress.gradients = compress.weights = compress.pipeline = compress.experts = "none";
  return lay_out(job.spec, request, {0}, {{1, 1 + static_cast<int>(job.spec.blocks.size())}}, false,
                 compress);
}

/// What the layers say of themselves, all kinds together.
Cost cost_of(const RankModel& model, const CostShape& shape) {
  Cost sum;
  for (const Layer* unit : model.layers) sum += unit->cost(shape);
  // The communicators end with the mesh.
  for (auto* calls : {&sum.calls_f, &sum.calls_b}) {
    for (LayerCall& call : *calls) call.over = nullptr;
  }
  return sum;
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
  shape.context = make_rank_context(context_shape(job, candidate), kFirst);
  shape.share_tokens = tokens_in(shape.context->plan.held[kFirst]);
  return shape;
}

DryBlocks dry_blocks(const Job& job, const Candidate& candidate) {
  Memory memory(Memory::Mode::dry, job.stack.place());
  const auto build = [&](const ParallelPlan& laid_out, const Mesh& on, bool recomputes) {
    return build_rank_model(
        job.spec, {.dtype = job.stack.compute, .positions = 1, .recompute_blocks = recomputes},
        laid_out, on, ParamStore::Purpose::inference, memory);
  };
  // Parameters do not depend on cp, but their padding would.
  const ParallelPlan plan = one_of_each(job, candidate, 1);
  const Mesh mesh = Mesh::recorded(plan.mesh, 0);
  const RankModel model = build(plan, mesh, false);
  const ParallelPlan shared = one_of_each(job, candidate, candidate.cp);
  const Mesh ranks = Mesh::recorded(shared.mesh, 0);
  const CostShape shape = cost_shape(job, candidate);
  DryBlocks sum;
  sum.cost =
      candidate.cp == 1 ? cost_of(model, shape) : cost_of(build(shared, ranks, false), shape);
  sum.recomputed = cost_of(build(shared, ranks, true), shape);
  sum.kinds = static_cast<int>(model.layers.size());
  sum.copies = plan.mesh.size(Axis::copy);
  int kind = 0;
  std::int64_t at = 0;
  for (const Parameter* parameter : model.store->parameters()) {
    add_inner(*parameter, kind, at, sum);
    at += padded(parameter->shape.count());
    if (at < model.units.buckets[static_cast<std::size_t>(kind)].elements) continue;
    sum.elements += at;
    at = 0;
    ++kind;
  }
  return sum;
}

}  // namespace heddle::planner
