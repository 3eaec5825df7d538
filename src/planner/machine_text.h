#pragma once

#include <string>
#include <vector>

#include "planner/machine.h"

namespace heddle::planner {

/// The machine as the text of a machine file: `parse_machine` gives it back, to six digits.
/// `comments` come first, each on a line of its own.
std::string machine_text(const Machine& machine, const std::vector<std::string>& comments);

}  // namespace heddle::planner
