#pragma once

#include <vector>

#include "model/rank_model.h"
#include "parallel/step/step_calls.h"
#include "planner/block_cost.h"
#include "planner/experts_cost.h"
#include "planner/matrix_work.h"

namespace heddle::planner {

/// Seconds of one pass of one micro-batch; `tp` of them are collectives over tp, `cp` waiting in
/// attention over cp, `ep` waiting for experts on other ranks.
struct UnitPass {
  double seconds = 0, tp = 0, cp = 0, ep = 0;
};

/// Of a vocabulary that is divided over the pipeline: f of the head is the pass S, b is T.
struct UnitTimes {
  UnitPass f = {}, b = {}, w = {};
  /// Where experts leave the network idle, from the beginning of b, and of b and w together.
  ExpertsWindow in_b = {}, in_bw = {};
};

/// What a rank of the pipeline has.
struct StepRank {
  RankUnits units;
  std::vector<UnitTimes> times;  ///< by unit
  double optimizer_seconds = 0;
  MatrixWork matrices = {};  ///< of an optimizer of whole matrices

  /// Of one micro-batch on a stage.
  UnitTimes of_stage(int stage) const;
};

/// A plan's step in units: as the runtime has them, from the same layers; times by the closed
/// form's `block`.
struct StepUnits {
  MeshShape mesh;
  StepPolicy policy;  ///< what the model's step sums beside losses
  CallSizes sizes;
  std::vector<StepRank> ranks;  ///< by pp rank
};

/// `rank_of_stage` as in Schedule.
StepUnits step_units(const Machine& machine, const Job& job, const Candidate& plan,
                     const BlockCost& block, const std::vector<int>& rank_of_stage);

}  // namespace heddle::planner
