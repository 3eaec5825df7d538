#include "data/mixture.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "data/test_files.h"

namespace heddle {
namespace {

void expect_within_one(const std::vector<double>& weights, std::int64_t samples) {
  const Mixture mixture(weights);
  const std::vector<double> shares = mixture.weights();
  std::vector<std::int64_t> given(weights.size(), 0);
  double worst = 0;
  for (std::int64_t i = 0; i < samples; ++i) {
    const auto pick = mixture.pick(i);
    ASSERT_EQ(pick.index, given[static_cast<std::size_t>(pick.source)]++) << "sample " << i;
    for (std::size_t s = 0; s < given.size(); ++s) {
      worst = std::max(
          worst, std::abs(static_cast<double>(given[s]) - static_cast<double>(i + 1) * shares[s]));
    }
  }
  EXPECT_LT(worst, 1.0);
  EXPECT_EQ(mixture.counts(samples), given);
}

TEST(Mixture, StaysWithinOneSampleOfItsWeightsAtEveryPrefix) {
  expect_within_one({1}, 10);
  expect_within_one({1, 1}, 101);
  expect_within_one({3, 1}, 101);
  expect_within_one({0.7, 0.2, 0.1}, 1007);
  expect_within_one({5, 1, 1, 1, 1, 1}, 1007);
  expect_within_one({0.5, 0.3, 0.11, 0.05, 0.03, 0.009, 0.001}, 20000);
  expect_within_one({1, std::numbers::pi, std::numbers::e, 0.001}, 30000);
}

TEST(Mixture, KeepsWeightsThatAreRatiosExactly) {
  EXPECT_EQ(Mixture(std::vector<double>{0.7, 0.2, 0.1}).period(), 10);
  EXPECT_EQ(Mixture(std::vector<double>{1, 1, 1}).period(), 3);
  EXPECT_EQ(Mixture(std::vector<double>{0.333, 0.333, 0.334}).period(), 1000);
  const Mixture odd(std::vector<double>{1, std::numbers::pi});
  EXPECT_NEAR(odd.weights()[0], 1 / (1 + std::numbers::pi), 1e-6);
}

TEST(Mixture, FindsFarSamplesWithoutCounting) {
  const Mixture mixture(std::vector<double>{3, 1});
  const auto far = std::int64_t{1} << 60;
  EXPECT_EQ(mixture.counts(far), (std::vector<std::int64_t>{far / 4 * 3, far / 4}));
  const auto pick = mixture.pick(far);
  EXPECT_EQ(pick.index, mixture.counts(far)[static_cast<std::size_t>(pick.source)]);
}

TEST(Mixture, RefusesWeightsThatMakeNoSense) {
  for (const double bad : {0.0, -1.0, std::nan(""), HUGE_VAL, 1e-9}) {
    const Error error = error_of([&] { Mixture(std::vector<double>{1.0, bad}); });
    EXPECT_EQ(error.code(), ErrorCode::usage) << bad;
    EXPECT_TRUE(contains(error.what(), "source 2")) << error.what();
  }
  EXPECT_EQ(error_of([&] { Mixture(std::vector<double>{}); }).code(), ErrorCode::usage);
}

}  // namespace
}  // namespace heddle
