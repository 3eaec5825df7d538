#include "parallel/experts/expert_placement.h"

#include <gtest/gtest.h>

namespace heddle {
namespace {

TEST(ExpertPlacement, AffinityCountsPairsOfNeighbouringLayers) {
  const RoutingTrace trace{
      .experts = 3, .layers = 3, .choices = 1, .taken = {0, 1, 2, 0, 1, 1, 2, -1, 0}};
  EXPECT_EQ(trace.tokens(), 3);
  const ExpertAffinity affinity = affinity_of(trace);
  ASSERT_EQ(affinity.layers(), 3);
  EXPECT_EQ(affinity.at(0, 0, 1), 2.0);
  EXPECT_EQ(affinity.at(1, 1, 2), 1.0);
  EXPECT_EQ(affinity.at(1, 1, 1), 1.0);
  EXPECT_EQ(affinity.total(), 4.0);  // the third token took no expert of layer 1
}

TEST(ExpertPlacement, ATokenWithSeveralChoicesCountsOnce) {
  const RoutingTrace trace{
      .experts = 4, .layers = 2, .choices = 2, .taken = {0, 1, 2, 3, 0, -1, 2, 3}};
  const ExpertAffinity affinity = affinity_of(trace);
  EXPECT_DOUBLE_EQ(affinity.at(0, 0, 2), 0.25 + 0.5);
  EXPECT_DOUBLE_EQ(affinity.at(0, 1, 3), 0.25);
  EXPECT_DOUBLE_EQ(affinity.total(), 2.0);
}

TEST(ExpertPlacement, HopsArePairsOnDifferentRanks) {
  const RoutingTrace trace{.experts = 4, .layers = 2, .choices = 1, .taken = {0, 1, 0, 3, 2, 3}};
  const ExpertAffinity affinity = affinity_of(trace);
  EXPECT_EQ(hops(affinity, contiguous_placement(2, 4, 2)), 1.0);
  EXPECT_EQ(hops(affinity, contiguous_placement(2, 4, 4)), 3.0);
  EXPECT_EQ(hops(affinity, contiguous_placement(2, 4, 1)), 0.0);
}

TEST(ExpertPlacement, NewNumbersMakeAPlacementContiguous) {
  const ExpertPlacement placement{.ranks = 2, .rank_of = {{1, 0, 1, 0}, {0, 0, 1, 1}}};
  EXPECT_EQ(renumbering_of(placement), (std::vector<std::vector<int>>{{1, 3, 0, 2}, {0, 1, 2, 3}}));
}

}  // namespace
}  // namespace heddle
