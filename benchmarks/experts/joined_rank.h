#pragma once

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/quantile.h"
#include "comm/tcp/tcp_world.h"

namespace heddle {

/// Runs `body` as the rank that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT make of this process
/// (shaped_nodes.sh sets them), one connection to each other.
inline void run_joined_rank(const std::function<void(World&)>& body) {
  const auto variable = [](const char* name) -> std::string {
    const char* const value = std::getenv(name);
    if (value == nullptr) throw std::runtime_error(std::string(name) + " is not set");
    return value;
  };
  run_tcp_rank({.rank = std::stoi(variable("RANK")),
                .size = std::stoi(variable("WORLD_SIZE")),
                .address = variable("MASTER_ADDR"),
                .port = static_cast<std::uint16_t>(std::stoi(variable("MASTER_PORT"))),
                .sockets = 1},
               body);
}

/// Seconds of the slowest rank. All begin together.
inline double slowest_seconds(World& world, const std::function<void()>& work) {
  world.all().barrier();
  const Stopwatch watch;
  work();
  return world.all().combine(watch.seconds(), ReduceOp::max);
}

/// The median of so many.
inline double median_seconds(World& world, int times, const std::function<void()>& work) {
  std::vector<double> all;
  for (int i = 0; i < times; ++i) all.push_back(slowest_seconds(world, work));
  return quantile(all, 0.5);
}

}  // namespace heddle
