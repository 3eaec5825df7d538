#pragma once

#include <string>
#include <vector>

#include "simulator/network/routing.h"
#include "simulator/network/topology.h"

namespace heddle::cli {

class Verb;

/// A network as the command line describes it.
struct TopologyOptions {
  std::string kind = {};  ///< leaf-spine, fat-tree or switch
  int leaves = 16, spines = 16, hosts_per_leaf = 0, k = 8, hosts = 8;
  double host_gbps = 400, fabric_gbps = 400, latency_ns = 500;
  std::vector<std::string> cut = {};
  std::string routing = "ecmp";
  int ways = 1;
};

/// `options` lives until the command line is parsed.
void add_topology_options(Verb verb, TopologyOptions& options);

network::Topology make_topology(const TopologyOptions& options);

/// How messages find their way through it; `seed` is of the hashed ones.
network::RoutingOptions make_routing(const TopologyOptions& options, std::uint64_t seed);

}  // namespace heddle::cli
