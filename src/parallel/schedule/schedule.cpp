#include "parallel/schedule/schedule.h"

#include <algorithm>

namespace heddle {

namespace {

/// Where a stage is in a route; its end: nowhere.
auto place_in(const std::vector<int>& route, int stage) { return std::ranges::find(route, stage); }

}  // namespace

int Schedule::behind(int stage, int microbatch) const {
  if (routes.empty()) return stage + 1 < stages() ? stage + 1 : -1;
  const auto& route = routes[static_cast<std::size_t>(microbatch)];
  const auto place = place_in(route, stage);
  return place == route.end() || place + 1 == route.end() ? -1 : *(place + 1);
}

int Schedule::before(int stage, int microbatch) const {
  if (routes.empty()) return stage - 1;
  const auto& route = routes[static_cast<std::size_t>(microbatch)];
  const auto place = place_in(route, stage);
  return place == route.end() || place == route.begin() ? -1 : *(place - 1);
}

bool Schedule::is_visited(int stage, int microbatch) const {
  if (routes.empty()) return true;
  const auto& route = routes[static_cast<std::size_t>(microbatch)];
  return place_in(route, stage) != route.end();
}

int Schedule::visits_of(int stage) const {
  if (routes.empty()) return microbatches;
  return static_cast<int>(std::ranges::count_if(
      routes, [&](const auto& route) { return place_in(route, stage) != route.end(); }));
}

std::vector<int> stages_of(const Schedule& schedule, int rank) {
  std::vector<int> stages;
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    if (schedule.rank_of(stage) == rank) stages.push_back(stage);
  }
  return stages;
}

std::vector<double> peak_in_flight(const Schedule& schedule) {
  std::vector<double> peaks;
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    int now = 0, peak = 0;
    for (const Action& action : schedule.by_rank[static_cast<std::size_t>(rank)]) {
      if (action.act == Act::f) peak = std::max(peak, ++now);
      if (action.act == Act::w || action.act == Act::bw) --now;
    }
    const std::size_t parts = std::max<std::size_t>(1, stages_of(schedule, rank).size());
    peaks.push_back(static_cast<double>(peak) / static_cast<double>(parts));
  }
  return peaks;
}

}  // namespace heddle
