#pragma once

#include "model/parallel_plan.h"
#include "planner/candidate.h"
#include "planner/machine.h"

namespace heddle::planner {

/// What a run does beside its plan: micro-batches of each replica, and its updates.
struct RunBatches {
  std::int64_t sequences = 1, seq_len = 1;  ///< of a micro-batch
  int microbatches = 1;
  bool recompute = false;       ///< whole blocks
  int newton_schulz_steps = 5;  ///< of an optimizer of whole matrices
};

/// Seconds that a step of Heddle takes on the machine, by the closed form and the played schedule
/// that `heddle plan` ranks plans by. Error(usage) when the machine file has no rate for the dtype.
double predicted_step_seconds(const Machine& machine, const ModelSpec& spec,
                              const ParallelPlan& plan, const RunBatches& batches, DType dtype);

}  // namespace heddle::planner
