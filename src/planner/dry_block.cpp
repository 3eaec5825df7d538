#include "planner/dry_block.h"

#include <algorithm>
#include <utility>

#include "model/rank_model.h"
#include "parallel/padding.h"

namespace heddle::planner {
namespace {

/// One of each kind that the model repeats.
ParallelPlan one_of_each(const ModelSpec& spec, int tp, bool sequence) {
  const ParallelRequest request{.dp = 1, .tp = tp, .sequence = sequence};
  return lay_out(spec, request, {0}, {{1, 1 + static_cast<int>(spec.blocks.size())}}, false);
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

DryBlocks dry_blocks(const Job& job, int tp, bool sequence, int sequences) {
  const ParallelPlan plan = one_of_each(job.spec, tp, sequence);
  Memory memory(Memory::Mode::dry, job.stack.place());
  const Mesh mesh = Mesh::recorded(plan.mesh, 0);
  const auto build = [&](bool recomputes) {
    return build_rank_model(
        job.spec, {.dtype = job.stack.compute, .positions = 1, .recompute_blocks = recomputes},
        plan, mesh, ParamStore::Purpose::inference, memory);
  };
  const RankModel model = build(false), recomputed = build(true);
  const CostShape shape{.sequences = sequences,
                        .seq_len = job.seq_len,
                        .dtype = job.stack.compute,
                        .residual_ranks = plan.sequence ? tp : 1};
  DryBlocks sum;
  for (const Layer* unit : model.layers) sum.cost += unit->cost(shape);
  for (const Layer* unit : recomputed.layers) sum.recomputed += unit->cost(shape);
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
  // The communicators end with the mesh.
  for (Cost* cost : {&sum.cost, &sum.recomputed}) {
    for (LayerCall& call : cost->calls_f) call.over = nullptr;
    for (LayerCall& call : cost->calls_b) call.over = nullptr;
  }
  return sum;
}

}  // namespace heddle::planner
