#pragma once

#include <cstdint>
#include <vector>

#include "planner/block_cost.h"
#include "planner/volumes.h"

namespace heddle::planner {

/// Seconds of one pass of one micro-batch; `tp` of them are collectives over tp.
struct UnitPass {
  double seconds = 0, tp = 0;
};

/// A unit of the model as a rank has it, with the flat buffer of its parameters.
struct StepUnit {
  UnitPass f = {}, b = {}, w = {};
  int bucket = -1;          ///< of StepRank::buckets; -1: no parameters
  bool owns_bucket = true;  ///< and so exchanges its gradients; a tied table is the embedding's
  bool makes_grads_in_f = false;
};

/// What a rank of the pipeline has.
struct StepRank {
  RankPart part;
  std::vector<std::int64_t> buckets;  ///< elements, with padding
  /// Of a vocabulary that is divided over the pipeline: f of `head` is the pass S, b is T.
  StepUnit embedding = {}, head = {};
  double optimizer_seconds = 0;
  double once_tp_seconds = 0;  ///< sums over tp of what is replicated, once per step
  double ends_bytes = 0;       ///< of a tied table that the other end has too; 0: none
};

/// A plan's step in units: times by the closed form's `block`, sizes as Volumes has them.
struct StepUnits {
  StepShape shape;
  std::vector<StepRank> ranks;                ///< by pp rank
  std::vector<std::vector<StepUnit>> stages;  ///< buckets are those of the stage's rank
};

StepShape step_shape(const Job& job, const Candidate& plan);

/// `rank_of_stage` as in Schedule.
StepUnits step_units(const Machine& machine, const Job& job, const Candidate& plan,
                     const BlockCost& block, const std::vector<int>& rank_of_stage);

}  // namespace heddle::planner
