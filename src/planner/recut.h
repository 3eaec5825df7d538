#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/parallel_plan.h"

namespace heddle::planner {

/// A pipeline's stages as they are, and as they had better be cut, by measured speeds of its ranks.
struct Recut {
  std::vector<int> now, better;  ///< blocks by stage; the same where nothing is better
  /// What the passes of a step take, with the waiting that the schedule has, without messages.
  double seconds_now = 0, seconds_better = 0;

  double gain() const { return seconds_better > 0 ? seconds_now / seconds_better : 1; }
};

/// `block_seconds`: what a micro-batch takes on one block, forward and backward, by pipeline rank;
/// of several ranks that share a stage the slowest's. What is 0, of a rank without blocks, counts
/// as the mean of the others. Embedding and head are reckoned by their work. Error(usage) where the
/// stages are not the planner's to cut: without a pipeline, and with routes, whose stages are
/// equal.
Recut recut_stages(const ModelSpec& spec, const ParallelPlan& plan, std::int64_t seq_len,
                   int microbatches, std::span<const double> block_seconds);

}  // namespace heddle::planner
