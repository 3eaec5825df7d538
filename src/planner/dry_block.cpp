#include "planner/dry_block.h"

#include "model/rank_model.h"

namespace heddle::planner {
namespace {

/// One of each kind that the model repeats.
ParallelPlan one_of_each(const ModelSpec& spec, int tp, bool sequence) {
  const ParallelRequest request{.dp = 1, .tp = tp, .sequence = sequence};
  return lay_out(spec, request, {0}, {{1, 1 + static_cast<int>(spec.blocks.size())}});
}

}  // namespace

DryBlocks dry_blocks(const Job& job, int tp, bool sequence, int sequences) {
  const ParallelPlan plan = one_of_each(job.spec, tp, sequence);
  Memory memory(Memory::Mode::dry, job.stack.place());
  const Mesh mesh = Mesh::recorded(plan.mesh, 0);
  const RankModel model = build_rank_model(job.spec, {.dtype = job.stack.compute, .positions = 1},
                                           plan, mesh, ParamStore::Purpose::inference, memory);
  const CostShape shape{.sequences = sequences,
                        .seq_len = job.seq_len,
                        .dtype = job.stack.compute,
                        .stream_ranks = plan.sequence ? tp : 1};
  DryBlocks sum;
  for (const Layer* unit : model.layers) sum.cost += unit->cost(shape);
  for (const auto& bucket : model.units.buckets) sum.elements += bucket.elements;
  sum.kinds = static_cast<double>(model.layers.size());
  // The communicators end with the mesh.
  for (auto* calls : {&sum.cost.calls_f, &sum.cost.calls_b}) {
    for (LayerCall& call : *calls) call.over = nullptr;
  }
  return sum;
}

}  // namespace heddle::planner
