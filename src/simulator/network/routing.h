#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "simulator/network/topology.h"

namespace heddle::network {

/// How messages find their way when there are several shortest ones (docs/design/013-network.md).
enum class Routing : std::uint8_t {
  ecmp,   ///< a seeded hash chooses
  split,  ///< pinned paths with the fewest pieces that load all of them alike
  spray,  ///< equal shares on all
};

std::vector<std::string> routing_names();
/// Error(usage) names the known ones.
Routing parse_routing(const std::string& name);

struct RoutingOptions {
  Routing routing = Routing::ecmp;
  int ways = 1;  ///< ecmp: equal pieces of each message, each with a hash of its own
  std::uint64_t seed = 0;
};

/// A piece takes `share` times its rate from the link.
struct LinkShare {
  int link = 0;
  double share = 1.0;
};

/// What goes its own way through the network, at one rate.
struct Piece {
  std::size_t message = 0;  ///< of those that were routed together
  double bytes = 0.0;
  double latency_seconds = 0.0;  ///< of its longest path
  std::vector<LinkShare> links = {};
};

struct Outgoing {
  int destination = 0;  ///< host
  double bytes = 0.0;
};

/// Chooses paths in a topology, which has to outlive it. The same question has the same answer.
class Router {
 public:
  Router(const Topology& topology, const RoutingOptions& options);

  /// The pieces of messages that a host sends together. Error(peer) when there is no path.
  std::vector<Piece> route(int source, std::span<const Outgoing> messages);

 private:
  /// Links between two leaves.
  struct Way {
    std::vector<LinkShare> links = {};
    double latency_seconds = 0.0;
  };
  struct WaySet {
    std::vector<Way> paths = {};
    Way spray = {};
  };

  int leaf_of(int host) const;
  const std::vector<int>& hops_to(int leaf);
  const WaySet& ways_between(int from_leaf, int to_leaf);
  const WaySet& ways_of(int source, int destination);
  Piece piece(int source, const Outgoing& message, const Way& way) const;
  std::vector<Piece> split(int source, std::span<const Outgoing> messages);

  const Topology& topology_;
  RoutingOptions options_;
  std::map<std::pair<int, int>, WaySet> way_sets_;
  std::map<int, std::vector<int>> hops_;  ///< by leaf, from every vertex
};

}  // namespace heddle::network
