#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "parallel/schedule/routes.h"

namespace heddle {

/// A place for one micro-batch at a time: when one has come back, the next takes the same route.
struct RouteSlot {
  Route route = {};
  double start = 0.0;
  int microbatches = 1;
};

/// What micro-batches take, in any unit. `forward` by node; `hop` from node to node.
struct RouteTimes {
  std::vector<double> forward = {};
  std::function<double(int from, int to)> hop = {};
  double loss = 0.25, backward = 1.5;  ///< as shares of a node's forward
  double gap = 0.0;                    ///< of a node behind everything it does
  int memory = 3;  ///< micro-batches that a node has between forward and backward
};

struct PlayedRoutes {
  struct Visit {
    enum class Kind : std::uint8_t { forward, loss, backward };
    Kind kind = Kind::forward;
    int node = 0, slot = 0, microbatch = 0;
    double begin = 0.0, end = 0.0;
  };
  std::vector<Visit> visits;  ///< in the order of their begins
  std::vector<int> peak;      ///< by node: most micro-batches between forward and backward
  double seconds = 0.0;
  int stuck = 0;  ///< micro-batches that wait for each other's room for ever
};

/// Plays micro-batches on their ways through the pipeline. A node does one thing at a time, in the
/// order in which it arrives; a forward that finds no room lets backwards pass. The first node of a
/// route has room for its slots.
PlayedRoutes play_routes(const std::vector<RouteSlot>& slots, const RouteTimes& times);

}  // namespace heddle
