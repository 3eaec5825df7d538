#pragma once

#include "model/parallel_plan.h"
#include "planner/rank_sizes.h"

namespace heddle {

/// What a rank has of a model, by the plan's assignment of units to stages.
inline planner::RankPart part_of(const ModelSpec& spec, const ParallelPlan& plan, int rank) {
  planner::RankPart part;
  const int last = unit_count(spec) - 1;
  for (const int stage : plan.stages_of(plan.mesh.coord(Axis::pp, rank))) {
    const auto& [begin, end] = plan.units_of_stage[static_cast<std::size_t>(stage)];
    for (int unit = begin; unit < end; ++unit) {
      part.has_first |= unit == 0;
      part.has_last |= unit == last;
      part.has_norm |= unit == last - 1;
      if (unit > 0 && unit < last - 1) ++part.blocks;
    }
  }
  return part;
}

}  // namespace heddle
