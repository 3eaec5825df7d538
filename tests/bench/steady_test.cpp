#include "bench/steady.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace heddle {
namespace {

/// A pass over a machine of two cores that was slowed down by `slower`.
MeasuredPass pass(double slower = 1.0, double others = 0.0) {
  RankRates rates{.ranks = 1, .threads = 2};
  rates.product_flops = 2e11 / slower;
  rates.products = {{ProductSample::Kind::output, 256, 320, 320, 1e-3 * slower}};
  rates.attention_flops = 5e10 / slower;
  rates.attention_by_head = {{64, 5e10 / slower}, {80, 4e10 / slower}};
  rates.block_bytes = 2e10 / slower;
  rates.copy_bytes = 1.55e10 / slower;
  rates.logit_seconds = 1e-9 * slower;
  rates.parameter_seconds = 2e-9 * slower;
  rates.kernel_seconds = 1e-6 * slower;
  return {.rates = rates, .others = others};
}

MachineSamples samples(const RankRates& one, const RankRates& each_of_two) {
  return {.rates = {one, each_of_two}};
}

TEST(SteadyPass, TakesTwoThatAgreeAndTheFasterFigures) {
  const auto found = steady_pass({pass(1.1), pass(1.0)});
  ASSERT_TRUE(found);
  EXPECT_DOUBLE_EQ(found->rates.product_flops, 2e11);
  EXPECT_DOUBLE_EQ(found->rates.copy_bytes, 1.55e10);
  EXPECT_DOUBLE_EQ(found->rates.parameter_seconds, 2e-9);
  EXPECT_DOUBLE_EQ(found->rates.products[0].seconds, 1e-3);
  EXPECT_DOUBLE_EQ(found->rates.attention_by_head[1][1], 4e10);
}

TEST(SteadyPass, NeedsTwo) { EXPECT_FALSE(steady_pass({pass()})); }

TEST(SteadyPass, PassesOverOnesThatWereDisturbed) {
  EXPECT_FALSE(steady_pass({pass(1.0), pass(2.0)}));
  const auto found = steady_pass({pass(3.0), pass(1.0), pass(30.0), pass(1.05)});
  ASSERT_TRUE(found);
  EXPECT_DOUBLE_EQ(found->rates.product_flops, 2e11);
}

TEST(SteadyPass, OneFigureThatDiffersIsEnough) {
  MeasuredPass other = pass();
  other.rates.block_bytes = 0.476e9;
  EXPECT_FALSE(steady_pass({pass(), other}));
}

TEST(SteadyPass, AgreementBesideOthersDoesNotCount) {
  // Two busy processes all the time: everything is half as fast, and steadily so.
  EXPECT_FALSE(steady_pass({pass(2.0, 0.5), pass(2.0, 0.5)}));
  EXPECT_TRUE(steady_pass({pass(2.0, 0.5), pass(1.0, 0.01), pass(1.0, 0.02)}));
}

TEST(SteadyPass, OfNoiseIsTheMachineOrNothing) {
  int answers = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    std::vector<MeasuredPass> passes;
    for (std::uint64_t i = 0; i < 6; ++i) {
      // Half of the passes are slowed down 2 to 30 times, others by up to a tenth.
      const double noise = static_cast<double>(random_u64(seed, 2 * i) % 1000) / 1000;
      const bool is_disturbed = random_u64(seed, 2 * i + 1) % 2 == 0;
      passes.push_back(is_disturbed ? pass(2 + 28 * noise, 0.4) : pass(1 + 0.1 * noise));
      const auto found = steady_pass(passes);
      if (!found) continue;
      ++answers;
      EXPECT_NEAR(found->rates.copy_bytes, 1.55e10, 0.1 * 1.55e10);
      break;
    }
  }
  EXPECT_GT(answers, 150);
}

TEST(Unsteadiness, NamesTheFigureThatDiffersMostAndTheOthers) {
  MeasuredPass slow = pass(1.5, 0.63);
  slow.rates.copy_bytes = 0.476e9;
  const std::string text = unsteadiness({pass(), slow});
  EXPECT_EQ(text,
            "copies between 0.476 and 15.5 GB/s in 2 passes; other processes had up to 63 % of the "
            "cores");
}

TEST(Contradictions, AreNoneInAPlausibleMachine) {
  MeasuredPass two = pass(1.9);
  two.rates.ranks = 2;
  EXPECT_TRUE(contradictions(samples(pass().rates, two.rates)).empty());
}

TEST(Contradictions, MemorySlowerBetweenProductsThanItCopies) {
  RankRates odd = pass().rates;
  odd.block_bytes = 0.476e9;
  const auto found = contradictions(samples(odd, pass(2.0).rates));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0], "1 rank: 0.476 GB/s between products, but copies at 15.5 GB/s");
}

TEST(Contradictions, CopiesSlowerThanWhatUpdatesMove) {
  RankRates odd = pass().rates;
  odd.copy_bytes = 1e9;
  const auto found = contradictions({.rates = {odd}});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0], "1 rank: updates that move 14 GB/s, but copies at 1 GB/s");
}

TEST(Contradictions, ARankFasterThanTheMachine) {
  RankRates two = pass(0.7).rates;
  two.ranks = 2;
  two.copy_bytes = 1e10;
  const auto found = contradictions(samples(pass().rates, two));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0], "2 ranks: products at 285.7 GFLOP/s each, but 200 with all cores");
}

}  // namespace
}  // namespace heddle
