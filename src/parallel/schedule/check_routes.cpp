#include <fmt/core.h>

#include <algorithm>
#include <set>

#include "parallel/schedule/checks.h"

namespace heddle {
namespace {

std::string fault_of(const std::vector<int>& route, int stages) {
  if (route.empty() || route.front() != 0 || route.back() != stages - 1) {
    return "does not go from the first stage to the last";
  }
  if (std::ranges::any_of(route, [&](int stage) { return stage < 0 || stage >= stages; })) {
    return "visits a stage that there is not";
  }
  const bool is_simple = std::set<int>(route.begin(), route.end()).size() == route.size();
  return is_simple ? "" : "visits a stage twice";
}

}  // namespace

void check_routes(const Schedule& schedule, std::vector<Diagnostic>& found) {
  const std::size_t routes = schedule.routes.size();
  if (routes != 0 && routes != static_cast<std::size_t>(schedule.microbatches)) {
    found.push_back(
        {-1, fmt::format("{} routes for {} micro-batches", routes, schedule.microbatches)});
  }
  for (std::size_t mb = 0; mb < routes; ++mb) {
    const std::string fault = fault_of(schedule.routes[mb], schedule.stages());
    if (!fault.empty()) found.push_back({-1, fmt::format("micro-batch {} {}", mb, fault)});
  }
}

}  // namespace heddle
