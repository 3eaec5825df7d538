#pragma once

#include <optional>

#include "observe/timeline.h"
#include "parallel/schedule/schedule.h"

namespace heddle {

/// The bar of an action that a rank began and ended; nothing for what only marks a point in time.
std::optional<observe::TimelineBar> timeline_bar(const Schedule& schedule, int rank,
                                                 const Action& action, double begin, double end);

}  // namespace heddle
