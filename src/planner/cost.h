#pragma once

#include "planner/block_cost.h"
#include "planner/memory.h"

namespace heddle::planner {

/// Calls in which ZeRO-3 exchanges a unit: every tensor of a layer is one in the stack that was
/// measured.
constexpr double gathers_per_unit(const Stack& stack) {
  return stack.overlaps_gathers ? 1.0 : 12.0;
}

/// Seconds of one optimizer step, and of what they consist.
struct TimeEstimate {
  double compute = 0;     ///< kernels and launches of the rank that has most
  double recompute = 0;   ///< of that, what is computed again
  double tp = 0;          ///< collectives over tp: nothing hides them
  double cp = 0;          ///< what attention waits for other ranks of its sequence
  double ep = 0;          ///< what experts wait for the ranks that they are divided over
  double bubble = 0;      ///< waiting for other stages
  double pp = 0;          ///< messages between stages that are waited for
  double dp = 0;          ///< exchange of gradients and parameters that is waited for
  double dp_hidden = 0;   ///< the same, under computation
  double step = 0;        ///< optimizer and the host's work around it
  double stragglers = 0;  ///< the slowest of all ranks is waited for
  double total = 0;

  /// Relative half-width of the interval in which two runs in three lie.
  double spread = 0;
};

/// Micro-batch times of a rank's whole part of the model: forward, gradient of the input, gradient
/// of the weights.
struct RankTimes {
  double f = 0, b = 0, w = 0;
};

/// Of a rank with so many blocks, apart from the ends of the model.
RankTimes rank_times(const BlockCost& block, Recompute recompute, double blocks);

/// Seconds a schedule takes beyond the micro-batches of the slowest rank, when messages take no
/// time: closed forms that `simulator/play` confirms.
double bubble_seconds(Pipeline schedule, int pp, int chunks, double microbatches,
                      const RankTimes& times);

/// Seconds from the end of a stage until the next has its output.
double hop_seconds(const Machine& machine, const Job& job, const Candidate& candidate,
                   const BlockCost& block);

/// The closed form. Allocates nothing: this is the planner's inner loop.
TimeEstimate estimate_time(const Machine& machine, const Job& job, const Candidate& candidate,
                           const Split& split, const BlockCost& block);

}  // namespace heddle::planner
