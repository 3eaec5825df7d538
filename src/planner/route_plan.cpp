#include "planner/route_plan.h"

#include <algorithm>
#include <limits>

#include "parallel/schedule/make_schedule.h"
#include "simulator/play.h"

namespace heddle::planner {
namespace {

double chain_seconds(const RoutePlan& plan, const RouteProblem& problem) {
  const RouteTimes& times = problem.times;
  const Schedule schedule =
      lower(make_schedule(Pipeline::routes, {.ranks = problem.stages(),
                                             .microbatches = static_cast<int>(plan.slots.size()),
                                             .routes = plan.routes_of_ranks()}));
  const auto node = [&](int rank) {
    return plan.nodes_by_stage[static_cast<std::size_t>(rank)].front();
  };
  std::vector<StageTimes> stages;
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    const double forward = times.forward[static_cast<std::size_t>(node(schedule.rank_of(stage)))];
    const bool is_head = stage + 1 == schedule.stages();
    const double share = is_head ? times.loss : stage == 0 ? problem.first : 1.0;
    // The head's time is that of both its passes; a node rests behind each.
    stages.push_back({.f = share * forward + times.gap,
                      .b = is_head ? 0.0 : share * times.backward * forward + times.gap,
                      .w = 0.0});
  }
  const auto hop = [&](int from, int to) -> HopTime {
    const double carried = problem.carried ? problem.carried(node(from), node(to)) : 0.0;
    return {.latency = times.hop(node(from), node(to)) - carried, .carried = carried};
  };
  return play(schedule, stages, hop).makespan;
}

}  // namespace

int RouteProblem::most_visits() const {
  const int others = stages() - 1;
  return is_chain() ? (microbatches * (length - 1) + others - 1) / others : times.memory;
}

std::vector<Route> RoutePlan::routes() const {
  std::vector<Route> all;
  for (const RouteSlot& slot : slots) all.push_back(slot.route);
  return all;
}

std::vector<Route> RoutePlan::routes_of_ranks() const {
  std::vector<Route> all = routes();
  for (Route& route : all) {
    for (int& node : route) {
      const auto stage = std::ranges::find_if(
          nodes_by_stage, [&](const auto& nodes) { return nodes.front() == node; });
      node = static_cast<int>(stage - nodes_by_stage.begin());
    }
  }
  return all;
}

double seconds_of(const RoutePlan& plan, const RouteProblem& problem) {
  if (problem.is_chain()) return chain_seconds(plan, problem);
  const PlayedRoutes played = play_routes(plan.slots, problem.times);
  if (played.stuck > 0) return std::numeric_limits<double>::infinity();
  double sums = 0.0;
  for (const auto& nodes : plan.nodes_by_stage) {
    for (std::size_t i = 0; problem.sum && i < nodes.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) sums = std::max(sums, problem.sum(nodes[j], nodes[i]));
    }
  }
  return played.seconds + sums;
}

}  // namespace heddle::planner
