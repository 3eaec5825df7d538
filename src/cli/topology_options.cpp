#include "cli/topology_options.h"

#include "cli/verb.h"

namespace heddle::cli {

network::Topology make_topology(const TopologyOptions& options) {
  using namespace network;
  const auto speed = [&](double gbps) {
    return LinkSpeed{.bytes_per_second = gbps * 1e9 / 8,
                     .latency_seconds = options.latency_ns * 1e-9};
  };
  const LinkSpeed host = speed(options.host_gbps), fabric = speed(options.fabric_gbps);
  const auto build = [&] {
    if (options.kind == "switch") {
      return network::make_topology(SingleSwitch{.hosts = options.hosts, .host = host});
    }
    if (options.kind == "fat-tree") {
      return network::make_topology(FatTree{.k = options.k,
                                            .hosts_per_edge = options.hosts_per_leaf,
                                            .host = host,
                                            .fabric = fabric});
    }
    return network::make_topology(
        LeafSpine{.leaves = options.leaves,
                  .spines = options.spines,
                  .hosts_per_leaf = options.hosts_per_leaf == 0 ? 16 : options.hosts_per_leaf,
                  .host = host,
                  .fabric = fabric});
  };
  Topology topology = build();
  for (const auto& cable : options.cut) topology.cut_cable(cable);
  return topology;
}

network::RoutingOptions make_routing(const TopologyOptions& options, std::uint64_t seed) {
  return {.routing = network::parse_routing(options.routing), .ways = options.ways, .seed = seed};
}

void add_topology_options(Verb verb, TopologyOptions& options) {
  Option kind = verb.add_option("--topology", options.kind, "leaf-spine, fat-tree or switch")
                    .one_of({"leaf-spine", "fat-tree", "switch"});
  if (!options.kind.empty()) kind.show_default();
  verb.add_option("--leaves", options.leaves, "of a leaf-spine").show_default();
  verb.add_option("--spines", options.spines, "of a leaf-spine").show_default();
  verb.add_option("--hosts-per-leaf", options.hosts_per_leaf,
                  "of a leaf-spine (16 when absent), or per edge switch of a fat-tree (k/2)");
  verb.add_option("--k", options.k, "ports of a fat-tree's switches").show_default();
  verb.add_option("--hosts", options.hosts, "of a single switch").show_default();
  verb.add_option("--host-gbps", options.host_gbps, "Gbit/s of a host's cable, each way")
      .show_default();
  verb.add_option("--fabric-gbps", options.fabric_gbps, "Gbit/s between switches, each way")
      .show_default();
  verb.add_option("--latency-ns", options.latency_ns, "of each cable").show_default();
  verb.add_option("--cut", options.cut, "take out a cable, as leaf0-spine3; may be repeated")
      .one_at_a_time();
  verb.add_option("--routing", options.routing,
                  "ecmp: hashed; split: pinned minimal splitting; spray: ideal")
      .one_of(network::routing_names())
      .show_default();
  verb.add_option("--ways", options.ways, "ecmp: equal pieces of each message, each hashed")
      .show_default();
}

}  // namespace heddle::cli
