#include "planner/place_experts.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "planner/experts_generation.h"

namespace heddle::planner {
namespace {

ExpertAffinity random_affinity(int experts, int layers, std::uint64_t key) {
  ExpertAffinity affinity{.experts = experts, .counts = {}};
  std::uint64_t draw = 0;
  for (int layer = 0; layer + 1 < layers; ++layer) {
    affinity.counts.emplace_back();
    for (int i = 0; i < experts * experts; ++i) {
      affinity.counts.back().push_back(static_cast<double>(random_u64(key, draw++) % 100));
    }
  }
  return affinity;
}

/// All placements of one layer, ranks being named.
std::vector<std::vector<int>> all_assignments(int experts, int ranks) {
  std::vector<int> one = contiguous_placement(1, experts, ranks).rank_of.front();
  std::vector<std::vector<int>> all;
  do {
    all.push_back(one);
  } while (std::ranges::next_permutation(one).found);
  return all;
}

double fewest_by_trial(const ExpertAffinity& affinity, ExpertPlacement& placement,
                       std::size_t layer, const std::vector<std::vector<int>>& all) {
  if (layer == placement.rank_of.size()) return hops(affinity, placement);
  double fewest = 1e300;
  for (const auto& one : all) {
    placement.rank_of[layer] = one;
    fewest = std::min(fewest, fewest_by_trial(affinity, placement, layer + 1, all));
  }
  return fewest;
}

void expect_balanced(const ExpertPlacement& placement, int experts) {
  for (const auto& layer : placement.rank_of) {
    ASSERT_EQ(layer.size(), static_cast<std::size_t>(experts));
    for (int rank = 0; rank < placement.ranks; ++rank) {
      ASSERT_EQ(std::ranges::count(layer, rank), experts / placement.ranks);
    }
  }
}

TEST(PlaceExperts, HasTheFewestHopsOfAllPlacements) {
  struct Case {
    int experts, ranks, layers;
  };
  for (const auto& [experts, ranks, layers] :
       {Case{4, 2, 4}, Case{4, 4, 3}, Case{6, 2, 3}, Case{6, 3, 3}}) {
    const auto all = all_assignments(experts, ranks);
    for (std::uint64_t key = 0; key < 6; ++key) {
      const ExpertAffinity affinity = random_affinity(experts, layers, key);
      // Which rank is which does not matter, so the first layer may stay.
      ExpertPlacement tried = contiguous_placement(layers, experts, ranks);
      double fewest = 1e300;
      for (const auto& first : all) {
        if (first.front() != 0) continue;
        tried.rank_of.front() = first;
        fewest = std::min(fewest, fewest_by_trial(affinity, tried, 1, all));
      }
      const PlacedExperts exact = place_experts(affinity, ranks);
      expect_balanced(exact.placement, experts);
      EXPECT_TRUE(exact.is_exact);
      EXPECT_DOUBLE_EQ(exact.hops, fewest) << experts << " on " << ranks << ", " << key;
      EXPECT_DOUBLE_EQ(exact.hops, hops(affinity, exact.placement));

      const PlacedExperts near = place_experts_by_descent(affinity, ranks);
      expect_balanced(near.placement, experts);
      EXPECT_DOUBLE_EQ(near.hops, hops(affinity, near.placement));
      EXPECT_GE(near.hops, fewest);
      EXPECT_LE(near.least_hops, fewest);
      EXPECT_LE(near.hops, 1.03 * fewest) << experts << " on " << ranks << ", " << key;
    }
  }
}

/// As many layers and experts as Mixtral, on 2, 4 and 8 ranks.
TEST(PlaceExperts, IsExactForMixtralsSize) {
  const ExpertAffinity affinity = random_affinity(8, 32, 1);
  const double all = affinity.total();
  for (const int ranks : {2, 4, 8}) {
    const PlacedExperts exact = place_experts(affinity, ranks),
                        near = place_experts_by_descent(affinity, ranks);
    EXPECT_TRUE(exact.is_exact);
    EXPECT_LE(exact.hops, near.hops);
    EXPECT_GE(exact.hops, near.least_hops);
    EXPECT_LT(exact.hops, hops(affinity, contiguous_placement(32, 8, ranks)));
    EXPECT_LT(near.hops - exact.hops, 0.02 * all);
  }
}

/// Tokens stay within one of several classes, whose experts are scattered differently in every
/// layer: there is a placement without hops.
ExpertAffinity planted(int experts, int layers, int classes) {
  ExpertAffinity affinity{.experts = experts, .counts = {}};
  const auto class_of = [&](int layer, int expert) {
    return (expert * 7 + layer * 5) % experts % classes;
  };
  for (int layer = 0; layer + 1 < layers; ++layer) {
    affinity.counts.emplace_back();
    for (int from = 0; from < experts; ++from) {
      for (int to = 0; to < experts; ++to) {
        affinity.counts.back().push_back(class_of(layer, from) == class_of(layer + 1, to) ? 1 : 0);
      }
    }
  }
  return affinity;
}

TEST(PlaceExperts, FindsWhatIsHiddenInLargeModels) {
  const ExpertAffinity affinity = planted(64, 12, 8);
  EXPECT_GT(count_partitions(64, 8), kMostPartitions);
  const PlacedExperts placed = place_experts(affinity, 8);
  expect_balanced(placed.placement, 64);
  EXPECT_EQ(placed.hops, 0.0);
  EXPECT_TRUE(placed.is_exact);
  EXPECT_GT(hops(affinity, contiguous_placement(12, 64, 8)), 0.5 * affinity.total());
}

TEST(PlaceExperts, BoundsWhatLargePlacementsMayLack) {
  const ExpertAffinity affinity = random_affinity(32, 6, 3);
  const PlacedExperts placed = place_experts(affinity, 8);
  expect_balanced(placed.placement, 32);
  EXPECT_FALSE(placed.is_exact);
  EXPECT_GT(placed.least_hops, 0.0);
  EXPECT_GT(placed.gap(), 0.0);
  EXPECT_LT(placed.gap(), 0.2);
  EXPECT_LT(placed.hops, hops(affinity, contiguous_placement(6, 32, 8)));
}

TEST(PlaceExperts, FillsNodesFirst) {
  const ExpertAffinity affinity = planted(16, 6, 4);
  const PlacedOnNodes found = place_experts_on_nodes(affinity, 2, 2);
  expect_balanced(found.placed.placement, 16);
  EXPECT_EQ(found.placed.placement.ranks, 4);
  EXPECT_EQ(found.between_nodes, 0.0);
  EXPECT_EQ(found.placed.hops, 0.0);
  ExpertPlacement nodes = found.placed.placement;
  for (auto& layer : nodes.rank_of) {
    for (int& rank : layer) rank /= 2;
  }
  EXPECT_EQ(hops(affinity, nodes), found.between_nodes);
}

/// The most that are tried: a minute would be too long.
TEST(PlaceExperts, IsExactForTenExpertsInPairs) {
  const ExpertAffinity affinity = random_affinity(10, 4, 2);
  const PlacedExperts exact = place_experts(affinity, 5);
  EXPECT_TRUE(exact.is_exact);
  EXPECT_LE(exact.hops, place_experts_by_descent(affinity, 5).hops);
}

TEST(PlaceExperts, CountsPartitions) {
  EXPECT_EQ(count_partitions(8, 4), 105.0);
  EXPECT_EQ(count_partitions(8, 8), 1.0);
  EXPECT_EQ(count_partitions(8, 2), 35.0);
  EXPECT_EQ(count_partitions(10, 5), 945.0);
}

/// moe.md 5.1: keys and values of new tokens cost more than the rows that no longer go home, on 4
/// ranks with Mixtral's key heads.
TEST(ExpertsGeneration, CountsWhatBothWaysSend) {
  GenerationShape shape{.ranks = 4,
                        .layers = 32,
                        .attention_layers = 32,
                        .experts = 8,
                        .sequences = 1,
                        .hidden = 4096,
                        .key_values = 2 * 1024,
                        .leaves = 0.75,
                        .leaves_placed = 0.75};
  EXPECT_DOUBLE_EQ(two_exchanges(shape).bytes, 2 * 32 * 3072.0 * 2 + 32 * 3 * 36 + 12);
  EXPECT_DOUBLE_EQ(one_exchange(shape).bytes, 32 * (3072.0 + 3 * 2048) * 2 + 32 * 3 * 8 + 12);
  EXPECT_EQ(two_exchanges(shape).calls, 97);
  EXPECT_EQ(one_exchange(shape).calls, 65);
  shape.key_values = 2 * 128;
  EXPECT_LT(one_exchange(shape).bytes, two_exchanges(shape).bytes);
}

}  // namespace
}  // namespace heddle::planner
