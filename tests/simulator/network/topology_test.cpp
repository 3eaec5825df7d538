#include "simulator/network/topology.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"

namespace heddle::network {
namespace {

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

TEST(Topology, LeafSpineConnectsEveryLeafToEverySpine) {
  const Topology topology = make_topology(LeafSpine{.leaves = 3, .spines = 2, .hosts_per_leaf = 4});
  EXPECT_EQ(topology.hosts(), 12);
  EXPECT_EQ(topology.vertices(), 12 + 3 + 2);
  EXPECT_EQ(topology.links().size(), 2u * (12 + 6));
  EXPECT_EQ(topology.link_name(topology.links_from(5).front()), "host5->leaf1");
  EXPECT_EQ(topology.link_name(static_cast<int>(topology.links().size()) - 1), "spine1->leaf2");
}

TEST(Topology, FatTreeHasTheSwitchesOfItsPorts) {
  const Topology topology = make_topology(FatTree{.k = 8, .hosts_per_edge = 16});
  EXPECT_EQ(topology.hosts(), 512);
  EXPECT_EQ(topology.vertices(), 512 + 32 + 32 + 16);
  EXPECT_EQ(make_topology(FatTree{.k = 4}).hosts(), 16);
}

TEST(Topology, CutsACableByName) {
  Topology topology = make_topology(LeafSpine{.leaves = 2, .spines = 2, .hosts_per_leaf = 1});
  const auto leaf = topology.links()[static_cast<std::size_t>(topology.links_from(0).front())].to;
  EXPECT_EQ(topology.links_from(leaf).size(), 3u);
  topology.cut_cable("spine1-leaf0");
  EXPECT_EQ(topology.links_from(leaf).size(), 2u);
  EXPECT_EQ(refusal([&] { topology.cut_cable("leaf0-spine1"); }),
            "leaf-spine of 2 leaves, 2 spines, 1 hosts per leaf has no cable leaf0-spine1");
}

TEST(Topology, RefusesCablesThatCarryNothing) {
  EXPECT_EQ(refusal([] { make_topology(LeafSpine{.fabric = {.bytes_per_second = 0}}); }),
            "cable leaf0-spine0 has a capacity of 0 bytes per second, so nothing that crosses it "
            "would ever arrive");
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_NE(refusal([&] { make_topology(SingleSwitch{.host = {.bytes_per_second = nan}}); }), "");
  EXPECT_EQ(refusal([] { make_topology(SingleSwitch{.host = {.latency_seconds = -1}}); }),
            "cable host0-switch has a latency of -1 s");
}

TEST(Topology, RefusesShapesThatCannotBe) {
  EXPECT_EQ(refusal([] { make_topology(LeafSpine{.spines = 0}); }),
            "a network with spines = 0 cannot be");
  EXPECT_EQ(refusal([] { make_topology(FatTree{.k = 5}); }), "a fat-tree with k = 5 cannot be");
  EXPECT_EQ(refusal([] { make_topology(LeafSpine{.leaves = 2000, .hosts_per_leaf = 2000}); }),
            "a network of 4000000 hosts is too large");
}

}  // namespace
}  // namespace heddle::network
