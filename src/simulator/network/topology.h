#pragma once

#include <string>
#include <vector>

namespace heddle::network {

/// What a cable can do in each of its directions.
struct LinkSpeed {
  double bytes_per_second = 50e9;
  double latency_seconds = 500e-9;
};

/// One direction of a cable.
struct Link {
  int from = 0, to = 0;  ///< vertices
  LinkSpeed speed = {};
};

/// Hosts, switches and the links between them. Vertices are numbered; hosts come first, so a host's
/// number is its vertex. Every host has one cable, to its leaf.
class Topology {
 public:
  /// A description for people, and hosts that are not connected yet.
  Topology(std::string description, int hosts);

  int add_switch(std::string name);
  /// Two links. Error(usage) names the cable when its speed is not that of a cable.
  void add_cable(int a, int b, const LinkSpeed& speed);
  /// Takes out the cable "leaf0-spine3". Error(usage) when there is none of that name.
  void cut_cable(const std::string& name);

  const std::string& description() const { return description_; }
  int hosts() const { return hosts_; }
  int vertices() const { return static_cast<int>(names_.size()); }
  const std::vector<Link>& links() const { return links_; }
  const std::vector<int>& links_from(int vertex) const;
  bool is_host_link(int link) const;
  const std::string& vertex_name(int vertex) const;
  /// "leaf0->spine3"
  std::string link_name(int link) const;

 private:
  std::string description_;
  int hosts_;
  std::vector<std::string> names_;
  std::vector<Link> links_;
  std::vector<std::vector<int>> links_from_;
};

struct LeafSpine {
  int leaves = 16, spines = 16, hosts_per_leaf = 16;
  LinkSpeed host = {}, fabric = {};
};

/// k pods of k/2 edge and k/2 aggregation switches, and k^2/4 cores.
struct FatTree {
  int k = 8, hosts_per_edge = 0;  ///< 0 hosts: k/2
  LinkSpeed host = {}, fabric = {};
};

struct SingleSwitch {
  int hosts = 8;
  LinkSpeed host = {};
};

Topology make_topology(const LeafSpine& shape);
Topology make_topology(const FatTree& shape);
Topology make_topology(const SingleSwitch& shape);

}  // namespace heddle::network
