#pragma once

#include <string>

#include "planner/report.h"

namespace heddle::planner {

/// The report as one self-contained HTML page (observe/page.h): the best plans and what their time
/// goes into, one step of the first over its pipeline ranks, what those hold, all searched layouts
/// as time against memory, what travels on each axis, and why the near misses lost.
std::string plan_page(const PlanReport& report);

}  // namespace heddle::planner
