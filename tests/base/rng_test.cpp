#include "base/rng.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace heddle {
namespace {

TEST(Philox, MatchesThePublishedVectors) {
  // Known-answer vectors of Philox4x32-10 from the authors' Random123 distribution.
  EXPECT_EQ(philox(0, 0, 0),
            (std::array<std::uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(~0ULL, ~0ULL, ~0ULL),
            (std::array<std::uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
}

TEST(RandomNormal, HasZeroMeanAndUnitVariance) {
  const auto key = rng_key(7, "test");
  double sum = 0, squares = 0;
  constexpr int kCount = 200000;
  for (int i = 0; i < kCount; ++i) {
    const double x = random_normal(key, i);
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / kCount, 0.0, 0.01);
  EXPECT_NEAR(squares / kCount, 1.0, 0.02);
}

TEST(RandomPermutation, VisitsEveryIndexOnce) {
  for (const std::uint64_t size : {1, 2, 3, 7, 64, 1000, 4097}) {
    std::vector<bool> seen(size, false);
    for (std::uint64_t i = 0; i < size; ++i) {
      const auto p = random_permutation(rng_key(1, size), i, size);
      ASSERT_LT(p, size);
      ASSERT_FALSE(seen[p]) << "index " << p << " twice in a permutation of " << size;
      seen[p] = true;
    }
  }
}

TEST(RandomPermutation, DependsOnTheKey) {
  int equal = 0;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    equal += random_permutation(1, i, 1000) == random_permutation(2, i, 1000) ? 1 : 0;
  }
  EXPECT_LT(equal, 20);
}

}  // namespace
}  // namespace heddle
