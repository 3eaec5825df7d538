#include "simulator/network/flow_network.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>

#include "base/rng.h"

namespace heddle::network {
namespace {

using Links = std::vector<LinkShare>;

std::vector<double> rates_of(const std::vector<double>& capacities,
                             const std::vector<Links>& flows) {
  std::vector<std::span<const LinkShare>> views(flows.begin(), flows.end());
  std::vector<double> rates(flows.size());
  MaxMin(capacities).solve(views, rates);
  return rates;
}

TEST(MaxMin, FillsUntilALinkIsFull) {
  // Three share link 0; what the first does not take of link 1 is the third one's.
  const auto rates = rates_of({10.0, 8.0, 100.0}, {{{0}, {1}}, {{0}}, {{1}, {2}}, {{0}, {2}}});
  EXPECT_DOUBLE_EQ(rates[0], 10.0 / 3);
  EXPECT_DOUBLE_EQ(rates[1], 10.0 / 3);
  EXPECT_DOUBLE_EQ(rates[3], 10.0 / 3);
  EXPECT_DOUBLE_EQ(rates[2], 8.0 - 10.0 / 3);
}

TEST(MaxMin, SharesWeighWhatAFlowTakes) {
  const auto rates = rates_of({3.0, 10.0}, {{{0, 0.5}, {1, 0.5}}, {{0, 1.0}}, {{1, 1.0}}});
  EXPECT_DOUBLE_EQ(rates[0], 2.0);
  EXPECT_DOUBLE_EQ(rates[1], 2.0);
  EXPECT_DOUBLE_EQ(rates[2], 9.0);
}

/// Random problems against what max-min fairness is: no link is overfull, and every flow crosses a
/// full link on which nobody has more than it.
TEST(MaxMin, EveryFlowHasABottleneck) {
  constexpr std::size_t kLinks = 24, kFlows = 200;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    std::uint64_t draw = 0;
    const auto next = [&] { return random_uniform(seed, draw++); };
    std::vector<double> capacities;
    for (std::size_t i = 0; i < kLinks; ++i) capacities.push_back(1.0 + 9.0 * next());
    std::vector<Links> flows(kFlows);
    for (auto& flow : flows) {
      const int step = 1 + static_cast<int>(6 * next());
      for (int link = static_cast<int>(6 * next()); link < static_cast<int>(kLinks); link += step) {
        flow.push_back({link, seed % 2 == 0 ? 1.0 : 0.1 + next()});
      }
    }
    const auto rates = rates_of(capacities, flows);
    std::vector<double> load(kLinks), highest(kLinks);
    for (std::size_t i = 0; i < kFlows; ++i) {
      for (const auto& [link, share] : flows[i]) {
        load[link] += rates[i] * share;
        highest[link] = std::max(highest[link], rates[i]);
      }
    }
    for (std::size_t i = 0; i < kLinks; ++i) EXPECT_LE(load[i], capacities[i] * (1 + 1e-9));
    for (std::size_t i = 0; i < kFlows; ++i) {
      EXPECT_TRUE(std::any_of(flows[i].begin(), flows[i].end(),
                              [&](const LinkShare& use) {
                                return load[use.link] >= capacities[use.link] * (1 - 1e-9) &&
                                       rates[i] >= highest[use.link] * (1 - 1e-9);
                              }))
          << "seed " << seed << " flow " << i;
    }
  }
}

/// Ends by id, of pieces between hosts of one switch with links of 1 byte per second.
class OneSwitch {
 public:
  explicit OneSwitch(double latency, double tolerance = 0.0)
      : topology_(make_topology(SingleSwitch{
            .hosts = 8, .host = {.bytes_per_second = 1.0, .latency_seconds = latency}})),
        router_(topology_, {}),
        network_(topology_, tolerance) {}

  void begin(double time, int source, int destination, double bytes) {
    const std::vector<Outgoing> message = {{destination, bytes}};
    network_.begin(time, router_.route(source, message).front(), ids_++);
  }

  std::map<std::size_t, double> play() {
    std::map<std::size_t, double> ends;
    for (auto ended = network_.advance(); !ended.empty(); ended = network_.advance()) {
      for (const auto& [id, time] : ended) ends[id] = time;
    }
    return ends;
  }

  std::int64_t solves() const { return network_.solves(); }

 private:
  Topology topology_;
  Router router_;
  FlowNetwork network_;
  std::size_t ids_ = 0;
};

TEST(FlowNetwork, SharesALinkAndGivesItBack) {
  OneSwitch network(0.0);
  network.begin(0.0, 0, 1, 4.0);
  network.begin(0.0, 0, 2, 2.0);
  network.begin(5.0, 3, 1, 1.0);
  const auto ends = network.play();
  EXPECT_DOUBLE_EQ(ends.at(1), 4.0);            // half a link each
  EXPECT_DOUBLE_EQ(ends.at(0), 5.0 + 1.0 * 2);  // alone from 4, shares host 1 from 5
  EXPECT_DOUBLE_EQ(ends.at(2), 7.0);
}

TEST(FlowNetwork, PaysLatencyBeforeTakingCapacity) {
  OneSwitch network(0.5);
  network.begin(0.0, 0, 1, 3.0);
  network.begin(1.0, 0, 2, 1.0);
  const auto ends = network.play();
  EXPECT_DOUBLE_EQ(ends.at(1), 1.0 + 1.0 + 2.0);
  EXPECT_DOUBLE_EQ(ends.at(0), 5.0);
}

TEST(FlowNetwork, NeedsNoSolutionForPiecesThatShareNothing) {
  OneSwitch network(0.0);
  network.begin(0.0, 0, 1, 4.0);
  network.begin(1.0, 2, 3, 4.0);
  const auto ends = network.play();
  EXPECT_DOUBLE_EQ(ends.at(0), 4.0);
  EXPECT_DOUBLE_EQ(ends.at(1), 5.0);
  EXPECT_EQ(network.solves(), 0);
}

TEST(FlowNetwork, GoesNoFurtherThanALimitSoThatMoreCanBegin) {
  FlowNetwork network(std::vector<double>{1.0}, 0.0);
  network.begin(0.0, {.bytes = 3.0, .links = {{0}}}, 0);
  EXPECT_TRUE(network.advance(1.0).empty());
  network.begin(1.0, {.bytes = 3.0, .links = {{0}}}, 1);
  EXPECT_TRUE(network.advance(4.9).empty());
  const auto first = network.advance(5.0);
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].id, 0u);
  EXPECT_DOUBLE_EQ(first[0].time, 5.0);
  EXPECT_DOUBLE_EQ(network.advance()[0].time, 6.0);
}

TEST(FlowNetwork, NothingIsAlsoSent) {
  OneSwitch network(0.5);
  network.begin(2.0, 0, 1, 0.0);
  EXPECT_DOUBLE_EQ(network.play().at(0), 3.0);
}

TEST(FlowNetwork, ToleranceBatchesEndsAndIsNeverEarly) {
  OneSwitch exact(0.0), batched(0.0, 0.01);
  for (auto* network : {&exact, &batched}) {
    for (int i = 0; i < 40; ++i) network->begin(0.0, i % 4, 4 + i % 3, 100.0 + 0.1 * i);
  }
  const auto expected = exact.play(), ends = batched.play();
  EXPECT_LT(batched.solves() * 4, exact.solves());
  for (const auto& [id, time] : expected) {
    EXPECT_GE(ends.at(id), time * (1 - 1e-12));
    EXPECT_LE(ends.at(id), time * 1.01);
  }
}

}  // namespace
}  // namespace heddle::network
