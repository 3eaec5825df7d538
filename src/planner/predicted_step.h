#pragma once

#include <optional>
#include <vector>

#include "model/parallel_plan.h"
#include "planner/candidate.h"
#include "planner/machine.h"
#include "planner/site_times.h"

namespace heddle::planner {

/// What a run does beside its plan: micro-batches of each replica, and its updates.
struct RunBatches {
  std::int64_t sequences = 1, seq_len = 1;  ///< of a micro-batch
  int microbatches = 1;
  bool recompute = false;       ///< whole blocks
  int newton_schulz_steps = 5;  ///< of an optimizer of whole matrices
  bool sends_signs = false;     ///< of the momentum, in place of gradients (Stack::sends_signs)
};

/// Seconds that a step of Heddle takes on the machine, by the closed form and the played schedule
/// that `heddle plan` ranks plans by; where there are sites, on average over the steps between two
/// meetings. Error(usage) when the machine file has no rate for the dtype.
double predicted_step_seconds(const Machine& machine, const ModelSpec& spec,
                              const ParallelPlan& plan, const RunBatches& batches, DType dtype);

/// Of what the mean step of a run with sites consists; nothing where there are none.
std::optional<SiteTimes> predicted_sites(const Machine& machine, const ModelSpec& spec,
                                         const ParallelPlan& plan, const RunBatches& batches,
                                         DType dtype);

/// What parallel.ep_exchange leaves to be planned: the degrees with which experts' rows take least
/// on the machine (degree=planned), and where sums of gradients go (windows=planned). Error(usage)
/// as above.
struct PlannedExchange {
  ExchangeRequest exchange = {};
  SumWindows windows = {};
};
PlannedExchange planned_exchange(const Machine& machine, const ModelSpec& spec,
                                 const ParallelPlan& plan, const RunBatches& batches, DType dtype);

/// What a rank of cp spends on the attention of one block for one micro-batch.
struct PredictedAttention {
  double computed = 0;                  ///< seconds, forward and backward
  double exposed_f = 0, exposed_b = 0;  ///< waiting for others, as `train` measures it
};
using AttentionByRank = std::vector<PredictedAttention>;  ///< of cp
/// Of each of the blocks that the model repeats, for sequences without packed documents. None where
/// cp is 1.
std::vector<AttentionByRank> predicted_attention(const Machine& machine, const ModelSpec& spec,
                                                 const ParallelPlan& plan,
                                                 const RunBatches& batches, DType dtype);

}  // namespace heddle::planner
