#pragma once

#include "planner/step_paths.h"
#include "planner/step_units.h"

namespace heddle::planner {

/// A step as a program, and what of its computations is what.
struct LoweredStep {
  StepProgram program;
  StepUnits units;
  /// By played rank: seconds of collectives over tp, in computations and in work.
  std::vector<double> tp_in_compute, tp_in_work;
};

/// Writes down what the runtime does in a step of `plan` with this schedule: TrainStep, ParamStore
/// and the executor are what it imitates. Error(data) names a send without receive or the other way
/// round.
LoweredStep lower_step(const Machine& machine, const Job& job, const Candidate& plan,
                       const Schedule& schedule, const BlockCost& block, const PlayedRanks& ranks,
                       const StepOptions& options);

}  // namespace heddle::planner
