#pragma once

#include <functional>
#include <vector>

#include "simulator/play_routes.h"

namespace heddle::planner {

/// Nodes, links and micro-batches for which stages and routes are looked for (SkipPipe, arXiv
/// 2502.19913).
struct RouteProblem {
  std::vector<int> stage_sizes = {};  ///< nodes of each stage; those of the first have the data
  /// Given: which nodes these are, and only routes are looked for.
  std::vector<std::vector<int>> nodes_by_stage = {};
  int length = 0;        ///< stages that a micro-batch visits
  int microbatches = 6;  ///< of each node of the first stage
  RouteTimes times = {};
  double first = 1.0;  ///< on a chain: the first stage's work, in forwards of its node
  /// Of a hop, for how long the link carries the message, so that the next one on it waits; absent:
  /// none does. On a chain only: as published, messages do not wait for each other.
  std::function<double(int, int)> carried = {};
  /// What nodes of a stage take to sum its gradients over the link between two of them; absent: not
  /// counted. The slowest link of a stage counts.
  std::function<double(int, int)> sum = {};

  int stages() const { return static_cast<int>(stage_sizes.size()); }
  int nodes() const { return static_cast<int>(times.forward.size()); }
  /// One node per stage: what `train` can execute.
  bool is_chain() const { return nodes() == stages(); }
  /// Routes to be found. On a chain every micro-batch has one. Otherwise a node of the first stage
  /// has as many as may be under way on it, each for some micro-batches one behind the other.
  int slots() const { return is_chain() ? microbatches : stage_sizes.front() * times.memory; }
  /// On a node behind the first stage: what may be under way there, and on a chain an equal share.
  int most_visits() const;
};

/// Which nodes have which stage, and the route of every slot.
struct RoutePlan {
  std::vector<std::vector<int>> nodes_by_stage = {};
  std::vector<RouteSlot> slots = {};
  double seconds = 0.0;  ///< of a step

  std::vector<Route> routes() const;
  /// Of a chain, with ranks in the order of stages: as parallel.routes has them.
  std::vector<Route> routes_of_ranks() const;
};

/// Of a step. On a chain: of the schedule that `train` executes for these routes, in which F and B
/// of a rank ascend with micro-batches. Otherwise as play_routes plays it, first come first served,
/// and the slowest sum of gradients behind it. Plans in which micro-batches wait for each other for
/// ever take infinitely long.
double seconds_of(const RoutePlan& plan, const RouteProblem& problem);

}  // namespace heddle::planner
