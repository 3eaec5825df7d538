#pragma once

#include "observe/timeline.h"
#include "planner/simulated_step.h"

namespace heddle::planner {

/// One step of a plan over its pipeline ranks: what they do, and below it what travels meanwhile.
/// `step` is what became of `schedule`, with spans; of several replicas the first is drawn. Where
/// there are more bars than a page has room for, some ranks are left out (Timeline::every).
observe::Timeline plan_timeline(const Schedule& schedule, const SimulatedStep& step);

}  // namespace heddle::planner
