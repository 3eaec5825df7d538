#pragma once

#include "parallel/schedule/routes.h"

namespace heddle {

/// What is wrong with the order in which one route visits stages; empty: nothing.
std::string order_fault(const std::vector<int>& stages, const RouteRules& rules);

}  // namespace heddle
