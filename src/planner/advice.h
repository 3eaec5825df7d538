#pragma once

#include <string>
#include <vector>

#include "planner/candidate.h"
#include "planner/machine.h"

namespace heddle::planner {

/// Sentences about sizes of the model that the machine's matrix units take badly at this layout,
/// each with the nearest better size: dimensions that lose alignment, and products whose last wave
/// is nearly empty. Empty when there is nothing to say.
std::vector<std::string> shape_advice(const Machine& machine, const Job& job,
                                      const Candidate& candidate);

}  // namespace heddle::planner
