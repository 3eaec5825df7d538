#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "simulator/network/flow_program.h"
#include "simulator/network/routing.h"

namespace heddle::network {

struct PlayOptions {
  RoutingOptions routing = {};
  std::vector<int> placement = {};         ///< host by rank; empty: rank r on host r
  std::vector<double> begin_seconds = {};  ///< by rank; empty: all at 0
  double tolerance = 1e-3;                 ///< of FlowNetwork
  /// Called now and then with (transfers done, all); may be absent.
  std::function<void(std::int64_t, std::int64_t)> on_progress = {};
};

struct PlayedTransfer {
  int source = 0, destination = 0;  ///< ranks
  double bytes = 0.0;
  double begin = 0.0, end = 0.0;  ///< from when both ends have posted it
};

struct PlayedProgram {
  double seconds = 0.0;              ///< until the last rank is done
  std::vector<double> rank_seconds;  ///< until each is
  PlayedTransfer slowest;            ///< the one that took longest
  std::int64_t transfers = 0, pieces = 0, solves = 0;
  int most_pieces_from_host = 0;  ///< that were under way at once
};

/// Plays a program on a network. Error(data) names an operation without partner, and operations
/// that wait for each other in a circle; Error(usage) a placement that cannot be; Error(peer) hosts
/// that have no path.
PlayedProgram play(const Topology& topology, const FlowProgram& program,
                   const PlayOptions& options);

}  // namespace heddle::network
