#pragma once

#include "nn/layer.h"
#include "planner/candidate.h"

namespace heddle::planner {

/// One of each kind of block that a model repeats, on one rank of tp and for one micro-batch: what
/// their layers say of themselves, which are built for this without memory. All that the planner
/// knows of blocks.
struct DryBlocks {
  Cost cost;                  ///< of all kinds together; calls are over tp
  std::int64_t elements = 0;  ///< of their parameters, padded as ParamStore does
  double kinds = 1;

  /// Of the mean block.
  double block_elements() const { return static_cast<double>(elements) / kinds; }
};

/// Allocates: once per (tp, sequence, micro-batch).
DryBlocks dry_blocks(const Job& job, int tp, bool sequence, int sequences);

}  // namespace heddle::planner
