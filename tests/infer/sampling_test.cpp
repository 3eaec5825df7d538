#include "infer/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <vector>

namespace heddle {
namespace {

/// Softmax probabilities 0.4, 0.3, 0.2, 0.1, in another order.
const std::vector<float> kLogits = {std::log(0.2F), std::log(0.4F), std::log(0.1F), std::log(0.3F)};

/// How often each token comes in `count` draws.
std::vector<double> frequencies(const SamplingOptions& options, int count = 20000) {
  std::vector<double> seen(kLogits.size());
  for (int i = 0; i < count; ++i) {
    seen[static_cast<std::size_t>(sample_token(kLogits, options, static_cast<std::uint64_t>(i)))] +=
        1.0 / count;
  }
  return seen;
}

void expect_frequencies(const SamplingOptions& options, const std::vector<double>& want) {
  const auto have = frequencies(options);
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (want[i] == 0.0) {
      EXPECT_EQ(have[i], 0.0) << "token " << i;
    } else {
      EXPECT_NEAR(have[i], want[i], 0.015) << "token " << i;
    }
  }
}

TEST(Sampling, TemperatureZeroTakesTheMostLikely) {
  for (std::uint64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(sample_token(kLogits, {.temperature = 0.0, .seed = i}, i), 1);
  }
}

TEST(Sampling, TiesGoToTheLowerId) {
  const std::vector<float> tied = {1.0F, 3.0F, 3.0F, 3.0F};
  EXPECT_EQ(sample_token(tied, {}, 0), 1);
  for (std::uint64_t i = 0; i < 20; ++i) {
    EXPECT_EQ(sample_token(tied, {.temperature = 1.0, .top_k = 1}, i), 1);
    EXPECT_EQ(sample_token(tied, {.temperature = 1.0, .top_p = 0.1}, i), 1);
    EXPECT_LE(sample_token(tied, {.temperature = 1.0, .top_k = 2}, i), 2);
  }
}

TEST(Sampling, FollowsTheDistribution) {
  expect_frequencies({.temperature = 1.0, .seed = 3}, {0.2, 0.4, 0.1, 0.3});
}

TEST(Sampling, TemperatureSharpensAndFlattens) {
  // Probabilities to the power 1 / temperature, normalised.
  expect_frequencies({.temperature = 0.5, .seed = 4}, {4 / 30.0, 16 / 30.0, 1 / 30.0, 9 / 30.0});
  expect_frequencies({.temperature = 1e6, .seed = 4}, {0.25, 0.25, 0.25, 0.25});
  expect_frequencies({.temperature = 1e-6, .seed = 4}, {0.0, 1.0, 0.0, 0.0});
}

TEST(Sampling, TopKKeepsTheMostLikely) {
  expect_frequencies({.temperature = 1.0, .top_k = 2}, {0.0, 4 / 7.0, 0.0, 3 / 7.0});
  expect_frequencies({.temperature = 1.0, .top_k = 1}, {0.0, 1.0, 0.0, 0.0});
  expect_frequencies({.temperature = 1.0, .top_k = 4}, {0.2, 0.4, 0.1, 0.3});
  expect_frequencies({.temperature = 1.0, .top_k = 1000}, {0.2, 0.4, 0.1, 0.3});
}

TEST(Sampling, TopPKeepsTheFewestThatReachIt) {
  expect_frequencies({.temperature = 1.0, .top_p = 0.65}, {0.0, 4 / 7.0, 0.0, 3 / 7.0});
  expect_frequencies({.temperature = 1.0, .top_p = 0.75}, {2 / 9.0, 4 / 9.0, 0.0, 3 / 9.0});
  expect_frequencies({.temperature = 1.0, .top_p = 0.3}, {0.0, 1.0, 0.0, 0.0});
  expect_frequencies({.temperature = 1.0, .top_p = 0.0}, {0.0, 1.0, 0.0, 0.0});
  expect_frequencies({.temperature = 1.0, .top_p = 1.0}, {0.2, 0.4, 0.1, 0.3});
}

TEST(Sampling, TopPCountsWhatTopKLeft) {
  // Of 4/9, 3/9, 2/9 the first two reach 0.75.
  expect_frequencies({.temperature = 1.0, .top_k = 3, .top_p = 0.75}, {0.0, 4 / 7.0, 0.0, 3 / 7.0});
}

TEST(Sampling, NeverTakesATokenOfNoProbability) {
  const float none = -std::numeric_limits<float>::infinity();
  const std::vector<float> masked = {none, 0.5F, none, 0.2F, none};
  std::set<std::int32_t> seen;
  for (std::uint64_t i = 0; i < 500; ++i) {
    seen.insert(sample_token(masked, {.temperature = 1.3}, i));
  }
  EXPECT_EQ(seen, (std::set<std::int32_t>{1, 3}));
}

TEST(Sampling, OfOneTokenTakesIt) {
  const std::vector<float> one = {-3.0F};
  EXPECT_EQ(sample_token(one, {}, 0), 0);
  EXPECT_EQ(sample_token(one, {.temperature = 1.0, .top_k = 5, .top_p = 0.5}, 7), 0);
}

TEST(Sampling, IsAFunctionOfSeedAndIndex) {
  const auto draw = [](std::uint64_t seed) {
    std::vector<std::int32_t> tokens;
    for (std::uint64_t i = 0; i < 64; ++i) {
      tokens.push_back(sample_token(kLogits, {.temperature = 1.0, .seed = seed}, i));
    }
    return tokens;
  };
  EXPECT_EQ(draw(1), draw(1));
  EXPECT_NE(draw(1), draw(2));
}

}  // namespace
}  // namespace heddle
