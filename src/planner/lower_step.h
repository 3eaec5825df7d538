#pragma once

#include "planner/message_sizes.h"
#include "planner/step_paths.h"
#include "planner/step_units.h"

namespace heddle::planner {

/// A step as a program of times and transfers.
struct LoweredStep {
  StepProgram program;
  /// By played rank: seconds of collectives over tp, in computations and in work.
  std::vector<double> tp_in_compute, tp_in_work;
  std::vector<double> cp_in_compute;   ///< the same: waiting in attention over cp
  std::vector<double> ep_in_compute;   ///< and for experts on other ranks
  std::vector<TrafficBySize> traffic;  ///< by pp rank: what a device of the first replica counts
};

/// Gives every op of a step (tell_step) of `plan` with this schedule its time. Error(data) names a
/// send without receive or the other way round.
LoweredStep lower_step(const Machine& machine, const Job& job, const Candidate& plan,
                       const Schedule& schedule, const BlockCost& block, const PlayedRanks& ranks,
                       const StepOptions& options);

}  // namespace heddle::planner
