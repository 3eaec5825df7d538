#pragma once

#include "engine/stage.h"
#include "parallel/schedule/schedule.h"

namespace heddle {

/// Does, in order, what the schedule says for `rank`. The schedule must be valid (see validate).
void execute(const Schedule& lowered, int rank, Stage& stage);

}  // namespace heddle
