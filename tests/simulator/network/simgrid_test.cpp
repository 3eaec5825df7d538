#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>

#include "simulator/network/collectives.h"
#include "simulator/network/placement.h"
#include "simulator/network/play_program.h"
#include "support/temporary_folder.h"

namespace heddle::network {
namespace {

/// Pieces of one path each: a sprayed one is cut into its paths, which have the same rate where the
/// load is even.
Routing single_path(Routing routing) {
  return routing == Routing::spray ? Routing::split : routing;
}

/// The program as simgrid_reference reads it. A transfer waits for all of the last round of both of
/// its ends.
std::string problem(const Topology& topology, const FlowProgram& program,
                    const PlayOptions& options) {
  const MatchedProgram matched = match(program);
  const auto hosts = place_ranks(topology, program.ranks(), options.placement);
  RoutingOptions routing = options.routing;
  routing.routing = single_path(routing.routing);
  Router router(topology, routing);
  std::vector<std::string> pieces(matched.transfers.size());
  std::vector<int> counts(matched.transfers.size());
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    for (const auto& round : matched.by_rank[rank]) {
      std::vector<Outgoing> messages;
      for (const auto id : round.sends) {
        const Transfer& transfer = matched.transfers[id];
        messages.push_back({hosts[transfer.destination], transfer.bytes});
      }
      for (const Piece& piece : router.route(hosts[rank], messages)) {
        const auto id = round.sends[piece.message];
        ++counts[id];
        pieces[id] += fmt::format(" {:.0f} {}", piece.bytes, piece.links.size());
        for (const auto& use : piece.links) pieces[id] += fmt::format(" {}", use.link);
      }
    }
  }
  std::string text = fmt::format("{}\n", topology.links().size());
  for (const Link& link : topology.links()) {
    text +=
        fmt::format("{:.17g} {:.17g}\n", link.speed.bytes_per_second, link.speed.latency_seconds);
  }
  text += fmt::format("{}\n", matched.transfers.size());
  for (std::size_t id = 0; id < matched.transfers.size(); ++id) {
    const Transfer& transfer = matched.transfers[id];
    double begin = 0.0;
    std::vector<std::uint32_t> after;
    for (const auto& [rank, round] :
         {std::pair(transfer.source, transfer.source_round),
          std::pair(transfer.destination, transfer.destination_round)}) {
      if (!options.begin_seconds.empty()) begin = std::max(begin, options.begin_seconds[rank]);
      int last = round - 1;
      const auto& rounds = matched.by_rank[rank];
      while (last >= 0 && rounds[last].sends.empty() && rounds[last].receives.empty()) --last;
      if (last < 0) continue;
      after.insert(after.end(), rounds[last].sends.begin(), rounds[last].sends.end());
      after.insert(after.end(), rounds[last].receives.begin(), rounds[last].receives.end());
    }
    text += fmt::format("{:.17g} {}{} {} {}\n", begin, counts[id], pieces[id], after.size(),
                        fmt::join(after, " "));
  }
  return text;
}

/// When each rank is done, by SimGrid.
std::vector<double> simgrid_rank_seconds(const Topology& topology, const FlowProgram& program,
                                         const PlayOptions& options) {
  const TemporaryFolder folder;
  const auto input = folder.path() / "problem", output = folder.path() / "ends";
  std::ofstream(input) << problem(topology, program, options);
  const std::string command =
      fmt::format("'{}' --log=xbt_cfg.thres:warning < '{}' > '{}'", HEDDLE_SIMGRID_REFERENCE,
                  input.string(), output.string());
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  std::ifstream ends(output);
  std::vector<double> seconds(program.by_rank.size());
  for (const Transfer& transfer : match(program).transfers) {
    double end = 0.0;
    EXPECT_TRUE(ends >> end);
    for (const int rank : {transfer.source, transfer.destination}) {
      seconds[rank] = std::max(seconds[rank], end);
    }
  }
  return seconds;
}

/// SimGrid gives flows of longer latency less (round-trip times of TCP), so all cables that only
/// some flows cross have none here.
constexpr LinkSpeed kHost = {.bytes_per_second = 1e9, .latency_seconds = 1e-5};
constexpr LinkSpeed kFabric = {.bytes_per_second = 1e9, .latency_seconds = 0};

Topology leaf_spine(double fabric_rate = 1e9) {
  return make_topology(LeafSpine{
      .leaves = 4, .spines = 4, .hosts_per_leaf = 4, .host = kHost, .fabric = {fabric_rate, 0.0}});
}

Topology fat_tree() {
  return make_topology(FatTree{.k = 4, .hosts_per_edge = 2, .host = kHost, .fabric = kFabric});
}

void expect_agreement(const Topology& topology, const FlowProgram& program,
                      const PlayOptions& options) {
  const auto expected = simgrid_rank_seconds(topology, program, options);
  const auto played = play(topology, program, options);
  double worst = 0.0;
  for (std::size_t rank = 0; rank < expected.size(); ++rank) {
    worst = std::max(worst, std::abs(played.rank_seconds[rank] / expected[rank] - 1.0));
    EXPECT_NEAR(played.rank_seconds[rank] / expected[rank], 1.0, 0.01) << "rank " << rank;
  }
  const double last = *std::max_element(expected.begin(), expected.end());
  fmt::print("{:<16} {:5} transfers: SimGrid {:.6f} s, Heddle {:.6f} s, worst rank off by {:.1e}\n",
             program.name, played.transfers, last, played.seconds, worst);
}

PlayOptions hashed(std::uint64_t seed) { return {.routing = {.seed = seed}}; }

TEST(SimGrid, AgreesOnAllToAllWithHashedPaths) {
  expect_agreement(leaf_spine(), direct_all_to_all(16, 16e6), hashed(1));
  const Topology larger = make_topology(
      LeafSpine{.leaves = 8, .spines = 4, .hosts_per_leaf = 4, .host = kHost, .fabric = kFabric});
  expect_agreement(larger, direct_all_to_all(32, 32e6), hashed(1));
}

TEST(SimGrid, AgreesOnAnOversubscribedAllToAll) {
  expect_agreement(leaf_spine(0.3e9), direct_all_to_all(16, 16e6), hashed(2));
}

TEST(SimGrid, AgreesOnAnExchangeWithCollisions) {
  expect_agreement(leaf_spine(), pairwise_exchange(16, 10e6), hashed(3));
}

TEST(SimGrid, AgreesOnARandomlyPlacedRing) {
  const Topology topology = leaf_spine();
  PlayOptions options = hashed(4);
  options.placement = random_placement(topology, 16, 4);
  expect_agreement(topology, ring_all_reduce(16, 16e6), options);
}

TEST(SimGrid, AgreesOnATreeThatBeginsUnevenly) {
  PlayOptions options = hashed(5);
  for (int rank = 0; rank < 16; ++rank) options.begin_seconds.push_back(1e-4 * (rank * 7 % 16));
  expect_agreement(leaf_spine(), tree_all_reduce(16, 16e6, 4), options);
}

TEST(SimGrid, AgreesOnHalvingDoublingInAFatTree) {
  expect_agreement(fat_tree(), halving_doubling_all_reduce(16, 16e6), hashed(6));
}

TEST(SimGrid, AgreesOnIncastWithABrokenCable) {
  Topology topology = leaf_spine();
  topology.cut_cable("leaf0-spine2");
  expect_agreement(topology, incast(16, 1e6), hashed(7));
}

TEST(SimGrid, AgreesOnMinimalSplitting) {
  PlayOptions options{.routing = {.routing = Routing::split}};
  options.placement = random_placement(leaf_spine(), 16, 8);
  expect_agreement(leaf_spine(), halving_doubling_all_reduce(16, 16e6), options);
}

TEST(SimGrid, AgreesOnSprayingWhereTheLoadIsEven) {
  const PlayOptions options{.routing = {.routing = Routing::spray}};
  expect_agreement(leaf_spine(0.5e9), pairwise_exchange(16, 16e6), options);
}

}  // namespace
}  // namespace heddle::network
