#include "simulator/network/routing.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>

#include "base/error.h"

namespace heddle::network {
namespace {

std::vector<Outgoing> messages_to(int first, int count, double bytes) {
  std::vector<Outgoing> messages;
  for (int i = 0; i < count; ++i) messages.push_back({first + i, bytes});
  return messages;
}

/// Bytes by name of fabric link.
std::map<std::string, double> fabric_bytes(const Topology& topology,
                                           const std::vector<Piece>& pieces) {
  std::map<std::string, double> bytes;
  for (const Piece& piece : pieces) {
    for (const auto& [link, share] : piece.links) {
      if (!topology.is_host_link(link)) bytes[topology.link_name(link)] += piece.bytes * share;
    }
  }
  return bytes;
}

TEST(Routing, SprayTakesEqualSharesOfAllShortestPaths) {
  const Topology topology = make_topology(FatTree{.k = 4});
  Router router(topology, {.routing = Routing::spray});
  const auto across = router.route(0, messages_to(15, 1, 8.0));
  ASSERT_EQ(across.size(), 1u);
  EXPECT_DOUBLE_EQ(across[0].latency_seconds, 6 * 500e-9);
  const auto bytes = fabric_bytes(topology, across);
  EXPECT_EQ(bytes.size(), 2u + 4 + 4 + 2);
  EXPECT_DOUBLE_EQ(bytes.at("edge0->agg0"), 4.0);
  EXPECT_DOUBLE_EQ(bytes.at("agg1->core3"), 2.0);
  EXPECT_DOUBLE_EQ(bytes.at("core3->agg7"), 2.0);
  const auto inside = fabric_bytes(topology, router.route(0, messages_to(2, 1, 8.0)));
  EXPECT_EQ(inside.size(), 4u);
  EXPECT_DOUBLE_EQ(inside.at("agg0->edge1"), 4.0);
}

TEST(Routing, SplitLoadsAllPathsAlikeWithTheFewestPieces) {
  const Topology topology =
      make_topology(LeafSpine{.leaves = 2, .spines = 8, .hosts_per_leaf = 32});
  Router router(topology, {.routing = Routing::split, .seed = 3});
  for (const int count : {1, 6, 8, 12, 27}) {
    const auto pieces = router.route(0, messages_to(32, count, 8.0));
    const int left_over = count % 8;
    EXPECT_EQ(static_cast<int>(pieces.size()),
              count - left_over + left_over * (8 / std::gcd(left_over, 8)))
        << count;
    const auto bytes = fabric_bytes(topology, pieces);
    EXPECT_EQ(bytes.size(), 16u);
    for (const auto& [name, sum] : bytes) EXPECT_DOUBLE_EQ(sum, count) << name;
  }
}

TEST(Routing, SplitLeavesNeighboursWhole) {
  const Topology topology = make_topology(LeafSpine{.leaves = 2, .spines = 4, .hosts_per_leaf = 8});
  Router router(topology, {.routing = Routing::split});
  const auto pieces = router.route(0, messages_to(1, 7, 1.0));
  ASSERT_EQ(pieces.size(), 7u);
  EXPECT_EQ(pieces[0].links.size(), 2u);
}

TEST(Routing, SplitUsesTheHealthyUplinks) {
  Topology topology = make_topology(LeafSpine{.leaves = 2, .spines = 4, .hosts_per_leaf = 8});
  topology.cut_cable("leaf1-spine2");
  Router router(topology, {.routing = Routing::split});
  const auto bytes = fabric_bytes(topology, router.route(0, messages_to(8, 4, 3.0)));
  EXPECT_EQ(bytes.size(), 6u);
  EXPECT_FALSE(bytes.contains("leaf0->spine2"));
  for (const auto& [name, sum] : bytes) EXPECT_DOUBLE_EQ(sum, 4.0) << name;
}

TEST(Routing, EcmpKeepsThePathOfAConnectionAndFollowsTheSeed) {
  const Topology topology = make_topology(LeafSpine{});
  std::set<int> uplinks;
  for (std::uint64_t seed = 0; seed < 64; ++seed) {
    Router router(topology, {.routing = Routing::ecmp, .seed = seed});
    const auto first = router.route(0, messages_to(100, 1, 1.0));
    const auto again = router.route(0, messages_to(100, 1, 1.0));
    ASSERT_EQ(first.size(), 1u);
    EXPECT_EQ(first[0].links[1].link, again[0].links[1].link);
    uplinks.insert(first[0].links[1].link);
  }
  EXPECT_GT(uplinks.size(), 12u);
}

TEST(Routing, EcmpCanGoSeveralWays) {
  const Topology topology = make_topology(LeafSpine{});
  Router router(topology, {.routing = Routing::ecmp, .ways = 4});
  const auto pieces = router.route(0, messages_to(100, 2, 1.0));
  ASSERT_EQ(pieces.size(), 8u);
  EXPECT_DOUBLE_EQ(pieces[5].bytes, 0.25);
  EXPECT_EQ(pieces[5].message, 1u);
}

TEST(Routing, NamesHostsThatCannotReachEachOther) {
  Topology topology = make_topology(LeafSpine{.leaves = 2, .spines = 1, .hosts_per_leaf = 2});
  topology.cut_cable("leaf1-spine0");
  topology.cut_cable("host1-leaf0");
  Router router(topology, {});
  const auto refusal = [&](int destination) {
    try {
      router.route(0, messages_to(destination, 1, 1.0));
    } catch (const Error& error) {
      return error.message();
    }
    return std::string();
  };
  EXPECT_EQ(refusal(2), "there is no path from host0 at leaf0 to host2 at leaf1");
  EXPECT_EQ(refusal(1), "host1 is not connected to anything");
}

TEST(Routing, NamesUnknownRoutings) {
  EXPECT_EQ(parse_routing("split"), Routing::split);
  EXPECT_THROW(parse_routing("spritz"), Error);
  EXPECT_THROW(Router(make_topology(SingleSwitch{}), {.ways = 0}), Error);
}

}  // namespace
}  // namespace heddle::network
