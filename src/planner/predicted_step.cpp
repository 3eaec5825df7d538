#include "planner/predicted_step.h"

#include "planner/finalists.h"

namespace heddle::planner {

double predicted_step_seconds(const Machine& machine, const ModelSpec& spec,
                              const ParallelPlan& plan, const RunBatches& batches, DType dtype) {
  const Candidate candidate{plan.request(), batches.recompute ? Recompute::full : Recompute::none,
                            static_cast<int>(batches.sequences)};
  Job job{.spec = spec,
          .seq_len = batches.seq_len,
          .batch = batches.sequences * batches.microbatches * candidate.dp,
          .stack = Stack::heddle(dtype, plan.whole_matrices ? Updates::muon : Updates::adamw)};
  job.stack.newton_schulz_steps = batches.newton_schulz_steps;
  const Machine at_work = machine.at_work(candidate.gpus());
  const Split split =
      split_blocks(job, candidate.schedule, candidate.pp, candidate.chunks, candidate.vocabulary);
  const BlockCost block = block_cost(at_work, job, candidate);
  Found found{.candidate = candidate, .time = {}, .memory = {}};
  found.time = estimate_time(at_work, job, candidate, split, block);
  return simulate_plan(at_work, job, found).seconds;
}

}  // namespace heddle::planner
