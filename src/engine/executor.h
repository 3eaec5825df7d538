#pragma once

#include <functional>

#include "engine/stage.h"
#include "parallel/schedule/schedule.h"

namespace heddle {

/// Called after each action with the seconds at which it began and ended, counted from the start of
/// the schedule: for timelines and for comparison with a simulation.
using OnAction = std::function<void(const Action&, double begin, double end)>;

/// Does, in order, what the schedule says for `rank`. The schedule must be valid (see validate).
void execute(const Schedule& lowered, int rank, Stage& stage, const OnAction& on_action = {});

}  // namespace heddle
