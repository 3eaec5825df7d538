#pragma once

#include <cstdint>
#include <functional>

#include "planner/route_plan.h"

namespace heddle::planner {

struct RouteSearchOptions {
  double seconds = 60.0;  ///< that the search may take
  int starts = 8;         ///< it ends sooner when it has begun anew so often
  std::uint64_t seed = 1;
  /// Told how many of how many plans were tried.
  std::function<void(std::uint64_t done, std::uint64_t all)> progress = {};
};

struct FoundRoutes {
  RoutePlan plan;
  RouteRules rules;          ///< that the plan keeps
  double first_seconds = 0;  ///< of the plan that the search began with
  std::uint64_t tried = 0;
  double search_seconds = 0;
};

/// Anneals stages and routes together: two nodes change stages, a slot takes another node or stage
/// in exchange with a slot that had it, or two visits of a route change their order. So each plan
/// that is tried keeps the rules. Error(usage) for stages that cannot be.
FoundRoutes search_routes(const RouteProblem& problem, const RouteSearchOptions& options);

}  // namespace heddle::planner
