#include "simulator/network/play_program.h"

#include <gtest/gtest.h>

#include <bit>

#include "base/error.h"
#include "simulator/network/collectives.h"
#include "simulator/network/link_load.h"
#include "simulator/network/placement.h"

namespace heddle::network {
namespace {

constexpr double kRate = 1e9, kLatency = 1e-6;

Topology one_switch(int hosts) {
  return make_topology(SingleSwitch{
      .hosts = hosts, .host = {.bytes_per_second = kRate, .latency_seconds = kLatency}});
}

double seconds(const FlowProgram& program) {
  return play(one_switch(program.ranks()), program, {}).seconds;
}

TEST(Collectives, RingTakesItsClosedForm) {
  for (const int n : {2, 3, 8, 17}) {
    EXPECT_NEAR(seconds(ring_all_reduce(n, 1e6)), 2 * (n - 1) * (1e6 / n / kRate + 2 * kLatency),
                1e-12);
  }
}

TEST(Collectives, HalvingDoublingTakesItsClosedForm) {
  for (const int n : {2, 4, 32}) {
    const double rounds = 2 * std::countr_zero(static_cast<unsigned>(n));
    EXPECT_NEAR(seconds(halving_doubling_all_reduce(n, 1e6)),
                2 * (n - 1) * 1e6 / n / kRate + rounds * 2 * kLatency, 1e-12);
  }
}

TEST(Collectives, AllToAllFillsEveryNic) {
  EXPECT_NEAR(seconds(direct_all_to_all(9, 9e6)), 8e6 / kRate + 2 * kLatency, 1e-12);
  EXPECT_NEAR(seconds(incast(5, 1e6)), 4e6 / kRate + 2 * kLatency, 1e-12);
}

/// Every rank sends its half to a parent in each tree and the result to children; nobody's NIC
/// carries more than twice the tensor, and all bytes arrive.
TEST(Collectives, DoubleTreeLoadsEveryNicAlike) {
  for (const int n : {2, 3, 8, 13, 32}) {
    const Topology topology = one_switch(n);
    const auto program = tree_all_reduce(n, 1.0, 4);
    const auto bytes = link_bytes(topology, program, {});
    double total = 0.0;
    for (const double one : bytes) total += one;
    EXPECT_NEAR(total, 2 * 2.0 * (n - 1), 1e-9) << n;  // two links each; up and down
    for (const double one : bytes) EXPECT_LE(one, 2.0 + 1e-9) << n;
  }
}

TEST(Collectives, ChunksPipelineATree) {
  const double whole = seconds(tree_all_reduce(32, 1e8, 1));
  const double chunked = seconds(tree_all_reduce(32, 1e8, 32));
  EXPECT_GT(whole / chunked, 3.0);
  EXPECT_GT(chunked, 2 * 1e8 / kRate * 31 / 32 * 0.9);
}

TEST(Collectives, RefuseRanksTheyCannotHave) {
  EXPECT_THROW(halving_doubling_all_reduce(6, 1.0), Error);
  EXPECT_THROW(ring_all_reduce(1, 1.0), Error);
  EXPECT_THROW(pairwise_exchange(5, 1.0), Error);
  EXPECT_THROW(direct_all_to_all(100'000, 1.0), Error);
  EXPECT_THROW(make_pattern("rong", {.ranks = 4, .bytes = 1.0}), Error);
}

TEST(PlayProgram, EveryPatternEndsOnEveryNetworkNoEarlierThanItsLoadAllows) {
  const Topology topologies[] = {
      make_topology(LeafSpine{.leaves = 4, .spines = 4, .hosts_per_leaf = 4}),
      make_topology(FatTree{.k = 4}), one_switch(16)};
  for (const Topology& topology : topologies) {
    for (const auto& name : pattern_names()) {
      for (const Routing routing : {Routing::ecmp, Routing::split, Routing::spray}) {
        const auto program = make_pattern(name, {.ranks = 16, .bytes = 1e6});
        const PlayOptions options{.routing = {.routing = routing, .seed = 1}};
        const auto played = play(topology, program, options);
        EXPECT_GE(
            played.seconds,
            busiest_link(topology, link_bytes(topology, program, options)).seconds * (1 - 1e-9))
            << topology.description() << " " << name;
        EXPECT_GT(played.slowest.end, played.slowest.begin);
        EXPECT_GE(played.pieces, played.transfers);
      }
    }
  }
}

TEST(PlayProgram, RanksBeginWhenTheyAreSaidTo) {
  const auto program = ring_step(2, 1e6);
  const auto played = play(one_switch(2), program, {.begin_seconds = {0.0, 0.5}});
  EXPECT_NEAR(played.seconds, 0.5 + 1e-3 + 2 * kLatency, 1e-12);
}

TEST(PlayProgram, ReportsProgressToTheEnd) {
  std::int64_t last = 0;
  const auto program = ring_all_reduce(4, 1e6);
  PlayOptions options;
  options.on_progress = [&](std::int64_t done, std::int64_t all) {
    EXPECT_GT(done, last);
    EXPECT_EQ(all, 24);
    last = done;
  };
  play(one_switch(4), program, options);
  EXPECT_EQ(last, 24);
}

std::string refusal(const FlowProgram& program, const PlayOptions& options = {}) {
  try {
    play(one_switch(4), program, options);
  } catch (const Error& error) {
    return error.message();
  }
  return "";
}

TEST(PlayProgram, NamesAnOperationWithoutPartner) {
  auto program = ring_all_reduce(3, 3.0);
  program.by_rank[1][2].receives.clear();
  EXPECT_EQ(refusal(program),
            "ring: rank 0, round 3: send of 1 bytes to rank 1 has no receive that meets it");
  program = ring_all_reduce(3, 3.0);
  program.by_rank[2][3].sends.clear();
  EXPECT_EQ(refusal(program),
            "ring: rank 0, round 3: receive of 1 bytes from rank 2 has no send that meets it");
  program = ring_all_reduce(3, 3.0);
  program.by_rank[0][0].sends[0].bytes = 2.0;
  EXPECT_EQ(refusal(program),
            "ring: rank 0, round 0: send of 2 bytes to rank 1 meets rank 1, round 0: receive of 1 "
            "bytes from rank 0");
  program.by_rank[0][0].sends[0].peer = 7;
  EXPECT_EQ(refusal(program),
            "ring: rank 0, round 0: send of 2 bytes to rank 7: there is no such rank");
}

TEST(PlayProgram, NamesADeadlock) {
  // Both send before they receive, and nobody has posted the receive.
  FlowProgram program{.name = "swap", .by_rank = {}};
  program.by_rank = {{{.sends = {{1, 8.0}}}, {.receives = {{1, 8.0}}}},
                     {{.sends = {{0, 8.0}}}, {.receives = {{0, 8.0}}}}};
  EXPECT_EQ(refusal(program),
            "swap cannot go on: rank 0 in round 0 waits to send 8 bytes to rank 1; rank 1 in round "
            "0 waits to send 8 bytes to rank 0");
}

TEST(PlayProgram, RefusesPlacementsThatCannotBe) {
  EXPECT_EQ(refusal(ring_all_reduce(5, 1.0)),
            "5 ranks do not fit on the 4 hosts of a one switch with 4 hosts");
  EXPECT_NE(refusal(ring_all_reduce(3, 1.0), {.placement = {0, 1, 1}}), "");
  EXPECT_NE(refusal(ring_all_reduce(3, 1.0), {.placement = {0, 1, 4}}), "");
}

TEST(LinkLoad, UtilisationCountsEveryLinkOnce) {
  const Topology topology = make_topology(LeafSpine{.leaves = 2, .spines = 2, .hosts_per_leaf = 2});
  const auto program = pairwise_exchange(4, 50e9);  // a second of a link
  const auto bytes = link_bytes(topology, program, {.routing = {.routing = Routing::spray}});
  EXPECT_DOUBLE_EQ(busiest_link(topology, bytes).seconds, 1.0);
  const auto fabric = utilisation(topology, bytes, 2.0, false);
  EXPECT_DOUBLE_EQ(fabric.mean, 0.5);
  EXPECT_DOUBLE_EQ(fabric.highest, 0.5);
  EXPECT_EQ(fabric.histogram[5], 8);
  EXPECT_EQ(utilisation(topology, bytes, 1.0, true).histogram[9], 8);
}

struct Reference {
  const char* pattern;
  bool is_random;
  double ecmp, two_ways, eight_ways;
};

/// The 16 x 16 x 16 leaf-spine of docs/studies/routing.md: the longest that a link takes for its
/// bytes, over the same with spraying; means over seeds within 5 %.
TEST(RoutingStudy, CongestionIsThatOfTheReferenceTable) {
  const Topology topology = make_topology(LeafSpine{});
  const Reference rows[] = {{"all-to-all", false, 1.12, 1.07, 1.005},
                            {"exchange", false, 4.49, 3.34, 2.09},
                            {"ring-step", false, 1.0, 1.0, 1.0},
                            {"ring-step", true, 4.74, 3.43, 2.12}};
  for (const auto& [pattern, is_random, ecmp, two_ways, eight_ways] : rows) {
    const auto program = make_pattern(pattern, {.ranks = 256, .bytes = 256.0});
    const int seeds = program.by_rank[0][0].sends.size() > 1 ? 3 : 40;
    const auto mean = [&](Routing routing, int ways) {
      double sum = 0.0;
      for (int seed = 0; seed < seeds; ++seed) {
        const std::uint64_t key = static_cast<std::uint64_t>(seed);
        PlayOptions options{.routing = {.routing = Routing::spray}};
        if (is_random) options.placement = random_placement(topology, 256, key);
        const double ideal = busiest_link(topology, link_bytes(topology, program, options)).seconds;
        options.routing = {.routing = routing, .ways = ways, .seed = key};
        sum += busiest_link(topology, link_bytes(topology, program, options)).seconds / ideal;
      }
      return sum / seeds;
    };
    EXPECT_NEAR(mean(Routing::spray, 1), 1.0, 1e-12) << pattern;
    EXPECT_NEAR(mean(Routing::split, 1), 1.0, 1e-12) << pattern;
    EXPECT_NEAR(mean(Routing::ecmp, 1) / ecmp, 1.0, 0.05) << pattern;
    EXPECT_NEAR(mean(Routing::ecmp, 2) / two_ways, 1.0, 0.05) << pattern;
    EXPECT_NEAR(mean(Routing::ecmp, 8) / eight_ways, 1.0, 0.05) << pattern;
  }
}

}  // namespace
}  // namespace heddle::network
