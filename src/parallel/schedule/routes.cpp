#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "parallel/schedule/route_order.h"

namespace heddle {
namespace {

std::string route_fault(const Route& route, const RouteRules& rules) {
  if (static_cast<int>(route.size()) != rules.length) {
    return fmt::format("visits {} nodes in place of {}", route.size(), rules.length);
  }
  std::vector<int> stages;
  for (const int node : route) {
    stages.push_back(rules.stage_of(node));
    if (stages.back() < 0) return fmt::format("visits node {}, which has no stage", node);
  }
  if (stages.front() != 0) return "does not begin at the first stage";
  return order_fault(stages, rules);
}

}  // namespace

std::string order_fault(const std::vector<int>& stages, const RouteRules& rules) {
  int furthest = 0, swaps = 0;
  for (std::size_t i = 1; i < stages.size(); ++i) {
    const int stage = stages[i];
    if (std::count(stages.begin(), stages.begin() + static_cast<std::ptrdiff_t>(i), stage) > 0) {
      return fmt::format("visits stage {} twice", stage);
    }
    if (stage < furthest - 1) {
      return fmt::format("visits stage {} behind stage {}: at most one place behind is allowed",
                         stage, furthest);
    }
    if (stage < furthest && ++swaps > rules.most_swaps) {
      return fmt::format("swaps stages more often than {} times", rules.most_swaps);
    }
    if (stage - furthest > rules.longest_jump) {
      return fmt::format("goes from stage {} to stage {}: at most {} ahead are allowed", furthest,
                         stage, rules.longest_jump);
    }
    furthest = std::max(furthest, stage);
  }
  return "";
}

int RouteRules::stage_of(int node) const {
  for (int stage = 0; stage < stages(); ++stage) {
    const std::vector<int>& nodes = nodes_by_stage[static_cast<std::size_t>(stage)];
    if (std::ranges::find(nodes, node) != nodes.end()) return stage;
  }
  return -1;
}

int route_length(int stages, double skipped) {
  return static_cast<int>(std::lround(stages * (1.0 - skipped)));
}

std::vector<std::string> faults_of(const std::vector<Route>& routes, const RouteRules& rules) {
  std::vector<std::string> faults;
  std::map<int, int> visits;  // by node
  for (const Route& route : routes) {
    for (const int node : route) ++visits[node];
    const std::string fault = route_fault(route, rules);
    if (!fault.empty()) faults.push_back(fmt::format("route {} {}", fmt::join(route, "-"), fault));
  }
  for (const auto& [node, count] : visits) {
    if (count <= rules.memory) continue;
    faults.push_back(fmt::format("node {} is visited by {} micro-batches and has room for {}", node,
                                 count, rules.memory));
  }
  return faults;
}

}  // namespace heddle
