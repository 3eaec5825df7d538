#pragma once

#include "parallel/step/sum_windows.h"
#include "planner/candidate.h"
#include "planner/machine.h"

namespace heddle::planner {

/// Where a job's sums of gradients go, and what backward takes with them.
struct PlannedWindows {
  SumWindows windows = {};  ///< of all blocks
  double seconds = 0.0;  ///< of the last backward pass and the sums, of the slowest pipeline rank
};

/// FSMoE's division of gradients (place_gradients) for a candidate whose degrees are named. Blocks
/// without experts count as the dense part behind the block with experts that backward meets before
/// them. Gradients that a rank makes before its first experts are there from the beginning; those
/// of an embedding come too late for any window.
PlannedWindows plan_windows(const Machine& machine, const Job& job, const Candidate& candidate,
                            const std::vector<int>& rank_of_stage);

}  // namespace heddle::planner
