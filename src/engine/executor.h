#pragma once

#include <functional>

#include "comm/communicator.h"
#include "engine/stage.h"

namespace heddle {

/// Called after each action with the seconds at which it began and ended, counted from the start of
/// the schedule: for timelines and for comparison with a simulation.
using OnAction = std::function<void(const Action&, double begin, double end)>;

/// Does, in order, what tell_step says for this rank of `pipeline`. The schedule must be valid (see
/// validate). As many sends to the same stage and in the same direction are outstanding as the
/// schedule needs, and their tensors are kept until then: what is held depends on the schedule and
/// not on timing.
void execute(const Schedule& lowered, const RankUnits& units, StepPolicy policy,
             Communicator& pipeline, Stage& stage, Stream& stream, const OnAction& on_action = {});

}  // namespace heddle
