#pragma once

#include "comm/communicator.h"
#include "planner/candidate.h"
#include "planner/dry_block.h"
#include "planner/machine.h"

namespace heddle::planner {

/// Where a rank stands among those of its stage; `dp_rank` counts the ranks of cp too, cp faster.
struct StagePlace {
  int dp_rank = 0, tp_rank = 0;
};

/// What an optimizer that works on whole matrices (Stack::whole_matrices) does in a step on a rank
/// with so many blocks, beside what every optimizer does.
struct MatrixWork {
  int ranks = 1;  ///< of the group that brings matrices together: of tp, and of dp and cp with ZeRO
  CommCounts traffic;  ///< in that group; nothing for one rank
  double flops = 0;    ///< of this rank's Newton-Schulz iterations
  double seconds = 0;  ///< of both, on the machine
};

/// By closed formulas from the matrices that the layers of its blocks have; tests/parity holds the
/// traffic against the runtime's. Allocates.
MatrixWork matrix_work(const Machine& machine, const Job& job, const Candidate& candidate,
                       const DryBlocks& dry, std::int64_t blocks, const StagePlace& place = {});

}  // namespace heddle::planner
