#include "planner/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace heddle::planner {
namespace {

/// Eight servers whose links differ.
std::vector<std::vector<double>> uneven_pairs() {
  std::vector<std::vector<double>> pairs(8, std::vector<double>(8, 300e9));
  for (int i = 0; i < 8; ++i) {
    for (int j = 0; j < 8; ++j) {
      const int low = std::min(i, j), high = std::max(i, j);
      if (i != j) {
        pairs[static_cast<std::size_t>(i)][static_cast<std::size_t>(j)] =
            1e9 * (8 + (7 * low + 11 * high + 5 * low * high) % 17);
      }
    }
  }
  return pairs;
}

TEST(Placement, CostsWhatIsKnownOfEightServers) {
  const auto pairs = uneven_pairs();
  const PlacementProblem problem{pairs, 4, 0.1e9, 1e9};
  std::vector<int> order(8);
  std::iota(order.begin(), order.end(), 0);
  EXPECT_NEAR(1e3 * placement_seconds(problem, order), 93.2312, 5e-5);
  EXPECT_NEAR(1e3 * placement_seconds(problem, std::vector{5, 6, 0, 1, 7, 3, 2, 4}), 73.1001, 5e-5);
  double least = 1e9, most = 0.0;
  int optima = 0;
  do {
    const double cost = 1e3 * placement_seconds(problem, order);
    if (cost < least - 1e-9) optima = 0;
    least = std::min(least, cost);
    most = std::max(most, cost);
    if (cost < least + 1e-9) ++optima;
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_NEAR(least, 73.1001, 5e-5);
  EXPECT_NEAR(most, 188.8889, 5e-5);
  EXPECT_EQ(optima, 2);
}

TEST(Placement, IsFoundByAnnealingFromMostSeeds) {
  const auto pairs = uneven_pairs();
  const PlacementProblem problem{pairs, 4, 0.1e9, 1e9};
  int found = 0;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const Placement placement = anneal_placement(problem, 5000, seed);
    EXPECT_DOUBLE_EQ(placement.seconds, placement_seconds(problem, placement.servers));
    if (1e3 * placement.seconds < 73.1002) ++found;
  }
  EXPECT_GE(found, 40);
}

}  // namespace
}  // namespace heddle::planner
