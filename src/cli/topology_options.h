#pragma once

#include <string>
#include <vector>

#include "simulator/network/topology.h"

namespace heddle::cli {

class Verb;

/// A network as the command line describes it.
struct TopologyOptions {
  std::string kind = {};  ///< leaf-spine, fat-tree or switch
  int leaves = 16, spines = 16, hosts_per_leaf = 0, k = 8, hosts = 8;
  double host_gbps = 400, fabric_gbps = 400, latency_ns = 500;
  std::vector<std::string> cut = {};
};

/// `options` lives until the command line is parsed.
void add_topology_options(Verb verb, TopologyOptions& options);

network::Topology make_topology(const TopologyOptions& options);

}  // namespace heddle::cli
