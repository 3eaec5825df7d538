#include "bench/link_bench.h"

#include <gtest/gtest.h>

#include "comm/threads/thread_world.h"

namespace heddle {
namespace {

TEST(BenchLinks, GivesTheRateOfEveryLinkAroundTheRanks) {
  run_ranks(3, [](World& world) {
    const auto rates = bench_links(world, {.bytes = 40'000, .warm_up = 0.0, .seconds = 0.05});
    ASSERT_EQ(rates.size(), 3U);
    for (int to = 0; to < 3; ++to) {
      const LinkRate& rate = rates[static_cast<std::size_t>(to)];
      EXPECT_EQ(rate.to, to);
      EXPECT_EQ(rate.from, (to + 2) % 3);
      EXPECT_GT(rate.latency_seconds, 0.0);
      EXPECT_GT(rate.messages, 0);
      EXPECT_GT(rate.bytes_per_second, 0.0);
      // No more than what fits into the time, from the first message that counts to the last.
      EXPECT_LT(rate.bytes_per_second * 0.04, 40'000.0 * static_cast<double>(rate.messages + 1));
    }
  });
}

TEST(BenchLinks, GoesFurtherThanToTheNextRank) {
  run_ranks(3, [](World& world) {
    const auto rates = bench_links(world, {.bytes = 40'000, .warm_up = 0.0, .seconds = 0.05}, 2);
    ASSERT_EQ(rates.size(), 3U);
    for (int to = 0; to < 3; ++to) {
      EXPECT_EQ(rates[static_cast<std::size_t>(to)].to, to);
      EXPECT_EQ(rates[static_cast<std::size_t>(to)].from, (to + 1) % 3);
      EXPECT_GT(rates[static_cast<std::size_t>(to)].bytes_per_second, 0.0);
    }
  });
}

TEST(BenchExchange, GivesAllRanksTheRateOfTheSlowest) {
  std::vector<double> rates(3);
  run_ranks(3, [&](World& world) {
    rates[static_cast<std::size_t>(world.rank())] =
        bench_exchange(world, {.bytes = 40'000, .warm_up = 0.0, .seconds = 0.05});
  });
  EXPECT_GT(rates[0], 0.0);
  EXPECT_EQ(rates[1], rates[0]);
  EXPECT_EQ(rates[2], rates[0]);
}

}  // namespace
}  // namespace heddle
