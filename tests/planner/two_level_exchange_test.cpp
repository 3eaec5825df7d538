#include "planner/two_level_exchange.h"

#include <gtest/gtest.h>

#include "support/source_dir.h"

namespace heddle::planner {
namespace {

constexpr ExchangeNetwork kNetwork{.nodes = 32,
                                   .per_node = 8,
                                   .message_between = 5e-6,
                                   .message_within = 1e-6,
                                   .rate_between = 25e9,
                                   .rate_within = 300e9,
                                   .copy_rate = 2e12};

TEST(TwoLevelExchange, CountsMessagesAndBytesOfBothWays) {
  constexpr double kBytes = 1e9;
  EXPECT_NEAR(linear_exchange_seconds(kNetwork, kBytes),
              248 * 5e-6 + 7 * 1e-6 + kBytes * (1 - 8.0 / 256) / 25e9, 1e-12);
  EXPECT_NEAR(two_level_exchange_seconds(kNetwork, kBytes),
              31 * 5e-6 + kBytes * (1 - 1.0 / 32) / 25e9 + 7 * 1e-6 +
                  kBytes * (1 - 1.0 / 8) / 300e9 + 4 * kBytes / 2e12,
              1e-12);
}

TEST(TwoLevelExchange, CrossesWhereMessagesWeighAsMuchAsTheSecondExchange) {
  const auto crossover = two_level_crossover(kNetwork);
  ASSERT_TRUE(crossover);
  // Solved for by hand: the time saved by fewer messages over what each byte costs more.
  const double saved = (248 - 31) * 5e-6;
  const double each = (1 - 1.0 / 8) / 300e9 + 4 / 2e12;
  EXPECT_NEAR(*crossover, saved / each, 1.0);
  for (const double factor : {0.99, 1.01}) {
    EXPECT_EQ(two_level_exchange_seconds(kNetwork, factor * *crossover) <
                  linear_exchange_seconds(kNetwork, factor * *crossover),
              factor < 1.0);
  }
}

TEST(TwoLevelExchange, PaysForMoreBytesTheMoreNodesThereAre) {
  double before = 0.0;
  for (const int nodes : {2, 4, 16, 64}) {
    ExchangeNetwork network = kNetwork;
    network.nodes = nodes;
    const double crossover = two_level_crossover(network).value_or(0.0);
    EXPECT_GT(crossover, before) << nodes;
    before = crossover;
  }
}

TEST(TwoLevelExchange, IsNeverFasterWithoutTwoLevels) {
  ExchangeNetwork network = kNetwork;
  network.per_node = 1;
  EXPECT_FALSE(two_level_crossover(network));
  network = kNetwork;
  network.nodes = 1;
  EXPECT_FALSE(two_level_crossover(network));
}

/// Messages that are under way at once wait once, in each of two levels.
TEST(TwoLevelExchange, IsNeverFasterOverDirectLinks) {
  Machine machine = read_machine(source_dir() + "/configs/systems/h200-hgx-ndr.toml");
  for (Link& link : machine.links) link.is_direct = true;
  const ExchangeNetwork network = exchange_network(machine, 4, machine.server_size());
  EXPECT_EQ(linear_exchange_seconds(network, 0.0), machine.links.back().latency_s);
  EXPECT_EQ(two_level_exchange_seconds(network, 0.0),
            machine.links.front().latency_s + machine.links.back().latency_s);
  EXPECT_FALSE(two_level_crossover(network));
}

/// Unless each costs something: then few of them are worth a second level, up to some size.
TEST(TwoLevelExchange, IsFasterOverDirectLinksWhereMessagesCost) {
  Machine machine = read_machine(source_dir() + "/configs/systems/h200-hgx-ndr.toml");
  for (Link& link : machine.links) {
    link.is_direct = true;
    link.message_s = 1e-4;
  }
  const int here = machine.server_size();
  const auto crossover = two_level_crossover(exchange_network(machine, 4, here));
  ASSERT_TRUE(crossover);
  const double saved = (3 * here - 3) * 1e-4 - machine.links.front().latency_s;
  const Link& within = machine.links.front();
  const double each = (1 - 1.0 / here) / (within.bytes_per_s * within.collective) +
                      4 / machine.device.memory_bytes_per_s;
  EXPECT_NEAR(*crossover, saved / each, 1.0);
}

TEST(TwoLevelExchange, TakesTheTiersOfAMachine) {
  const Machine machine = read_machine(source_dir() + "/configs/systems/h200-hgx-ndr.toml");
  const ExchangeNetwork network = exchange_network(machine, 4, machine.server_size());
  EXPECT_EQ(network.ranks(), 4 * machine.server_size());
  EXPECT_GT(network.rate_within, network.rate_between);
  EXPECT_TRUE(two_level_crossover(network));
}

}  // namespace
}  // namespace heddle::planner
