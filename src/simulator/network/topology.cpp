#include "simulator/network/topology.h"

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"

namespace heddle::network {
namespace {

/// More are a slip of the keyboard, and would take minutes to connect.
constexpr int kMostParts = 200'000;

void check_count(const char* what, int count, int least) {
  if (count >= least && count <= kMostParts) return;
  throw Error(ErrorCode::usage, fmt::format("a network with {} = {} cannot be", what, count),
              fmt::format("give {} between {} and {}", what, least, kMostParts));
}

void check_size(const char* what, double count) {
  if (count <= kMostParts) return;
  throw Error(ErrorCode::usage, fmt::format("a network of {:.0f} {} is too large", count, what),
              fmt::format("at most {} can be simulated", kMostParts));
}

}  // namespace

Topology::Topology(std::string description, int hosts)
    : description_(std::move(description)), hosts_(hosts) {
  for (int host = 0; host < hosts; ++host) names_.push_back(fmt::format("host{}", host));
  links_from_.resize(static_cast<std::size_t>(hosts));
}

int Topology::add_switch(std::string name) {
  names_.push_back(std::move(name));
  links_from_.emplace_back();
  return static_cast<int>(names_.size()) - 1;
}

void Topology::add_cable(int a, int b, const LinkSpeed& speed) {
  const auto cable = [&] { return fmt::format("{}-{}", vertex_name(a), vertex_name(b)); };
  if (!(std::isfinite(speed.bytes_per_second) && speed.bytes_per_second > 0.0)) {
    throw Error(ErrorCode::usage,
                fmt::format("cable {} has a capacity of {:g} bytes per second, so nothing that "
                            "crosses it would ever arrive",
                            cable(), speed.bytes_per_second),
                "give it a rate above 0; to take it out, cut it");
  }
  if (!(std::isfinite(speed.latency_seconds) && speed.latency_seconds >= 0.0)) {
    throw Error(ErrorCode::usage,
                fmt::format("cable {} has a latency of {:g} s", cable(), speed.latency_seconds),
                "give 0 or more");
  }
  for (const auto& [from, to] : {std::pair{a, b}, std::pair{b, a}}) {
    links_from_[static_cast<std::size_t>(from)].push_back(static_cast<int>(links_.size()));
    links_.push_back({.from = from, .to = to, .speed = speed});
  }
}

void Topology::cut_cable(const std::string& name) {
  bool is_found = false;
  for (std::size_t vertex = 0; vertex < links_from_.size(); ++vertex) {
    is_found |= std::erase_if(links_from_[vertex], [&](int link) {
                  const auto [from, to, speed] = links_[static_cast<std::size_t>(link)];
                  return name == vertex_name(from) + "-" + vertex_name(to) ||
                         name == vertex_name(to) + "-" + vertex_name(from);
                }) > 0;
  }
  if (is_found) return;
  const auto& last = links_.back();
  throw Error(
      ErrorCode::usage, fmt::format("{} has no cable {}", description_, name),
      fmt::format("cables are named like {}-{}", vertex_name(last.to), vertex_name(last.from)));
}

const std::vector<int>& Topology::links_from(int vertex) const {
  return links_from_[static_cast<std::size_t>(vertex)];
}

bool Topology::is_host_link(int link) const {
  const Link& l = links_[static_cast<std::size_t>(link)];
  return l.from < hosts_ || l.to < hosts_;
}

const std::string& Topology::vertex_name(int vertex) const {
  return names_[static_cast<std::size_t>(vertex)];
}

std::string Topology::link_name(int link) const {
  const Link& l = links_[static_cast<std::size_t>(link)];
  return vertex_name(l.from) + "->" + vertex_name(l.to);
}

Topology make_topology(const LeafSpine& shape) {
  check_count("leaves", shape.leaves, 1);
  check_count("spines", shape.spines, 1);
  check_count("hosts per leaf", shape.hosts_per_leaf, 1);
  check_size("hosts", 1.0 * shape.leaves * shape.hosts_per_leaf);
  check_size("cables", 1.0 * shape.leaves * shape.spines);
  Topology topology(fmt::format("leaf-spine of {} leaves, {} spines, {} hosts per leaf",
                                shape.leaves, shape.spines, shape.hosts_per_leaf),
                    shape.leaves * shape.hosts_per_leaf);
  std::vector<int> leaves;
  for (int leaf = 0; leaf < shape.leaves; ++leaf) {
    leaves.push_back(topology.add_switch(fmt::format("leaf{}", leaf)));
    for (int i = 0; i < shape.hosts_per_leaf; ++i) {
      topology.add_cable(leaf * shape.hosts_per_leaf + i, leaves.back(), shape.host);
    }
  }
  for (int spine = 0; spine < shape.spines; ++spine) {
    const int top = topology.add_switch(fmt::format("spine{}", spine));
    for (const int leaf : leaves) topology.add_cable(leaf, top, shape.fabric);
  }
  return topology;
}

Topology make_topology(const FatTree& shape) {
  if (shape.k < 2 || shape.k % 2 != 0 || shape.k > 128) {
    throw Error(ErrorCode::usage, fmt::format("a fat-tree with k = {} cannot be", shape.k),
                "k is the number of ports of its switches: give an even number from 2 to 128");
  }
  const int half = shape.k / 2;
  const int hosts_per_edge = shape.hosts_per_edge == 0 ? half : shape.hosts_per_edge;
  check_count("hosts per edge switch", hosts_per_edge, 1);
  check_size("hosts", 1.0 * shape.k * half * hosts_per_edge);
  Topology topology(
      fmt::format("fat-tree of k = {}, {} hosts per edge switch", shape.k, hosts_per_edge),
      shape.k * half * hosts_per_edge);
  std::vector<int> edges, aggregations;
  for (int i = 0; i < shape.k * half; ++i) {
    edges.push_back(topology.add_switch(fmt::format("edge{}", i)));
    for (int j = 0; j < hosts_per_edge; ++j) {
      topology.add_cable(i * hosts_per_edge + j, edges.back(), shape.host);
    }
  }
  for (int i = 0; i < shape.k * half; ++i) {
    aggregations.push_back(topology.add_switch(fmt::format("agg{}", i)));
    const int pod = i / half;
    for (int j = 0; j < half; ++j) {
      topology.add_cable(edges[static_cast<std::size_t>(pod * half + j)], aggregations.back(),
                         shape.fabric);
    }
  }
  for (int core = 0; core < half * half; ++core) {
    const int top = topology.add_switch(fmt::format("core{}", core));
    for (int pod = 0; pod < shape.k; ++pod) {
      topology.add_cable(aggregations[static_cast<std::size_t>(pod * half + core / half)], top,
                         shape.fabric);
    }
  }
  return topology;
}

Topology make_topology(const SingleSwitch& shape) {
  check_count("hosts", shape.hosts, 1);
  Topology topology(fmt::format("one switch with {} hosts", shape.hosts), shape.hosts);
  const int middle = topology.add_switch("switch");
  for (int host = 0; host < shape.hosts; ++host) topology.add_cable(host, middle, shape.host);
  return topology;
}

}  // namespace heddle::network
