#pragma once

#include "parallel/sequence/context_program.h"

namespace heddle {

/// Makes one of neighbouring calls of a round whose rows follow each other, where one call computes
/// the pairs of both: large blocks lose less at their edges, and results are read and written less
/// often.
void merge_calls(std::vector<TileCall>& calls);

}  // namespace heddle
