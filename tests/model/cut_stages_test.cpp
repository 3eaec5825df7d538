#include "model/cut_stages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/rng.h"

namespace heddle {
namespace {

using Units = DecoderPart::Units;

/// What the costliest stage costs.
double worst(const std::vector<double>& costs, const std::vector<Units>& stages) {
  double most = 0.0;
  for (const auto& [begin, end] : stages) {
    most = std::max(most, std::accumulate(costs.begin() + begin, costs.begin() + end, 0.0));
  }
  return most;
}

/// The same by trying every way to cut, none empty.
double least_worst(const std::vector<double>& costs, int stages, std::size_t from = 0) {
  if (stages == 1) {
    return std::accumulate(costs.begin() + static_cast<std::ptrdiff_t>(from), costs.end(), 0.0);
  }
  double least = 1e300, first = 0.0;
  for (std::size_t end = from + 1; end + static_cast<std::size_t>(stages) - 1 <= costs.size();
       ++end) {
    first += costs[end - 1];
    least = std::min(least, std::max(first, least_worst(costs, stages - 1, end)));
  }
  return least;
}

void expect_covers(const std::vector<Units>& stages, int units) {
  int next = 0;
  for (const auto& [begin, end] : stages) {
    EXPECT_EQ(begin, next);
    EXPECT_LE(begin, end);
    next = end;
  }
  EXPECT_EQ(next, units);
}

std::vector<int> one_rank_each(int stages) {
  std::vector<int> ranks(static_cast<std::size_t>(stages));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

/// What the costliest rank costs.
double worst_rank(const std::vector<double>& costs, const std::vector<Units>& stages,
                  const std::vector<int>& rank_of_stage) {
  std::vector<double> load(rank_of_stage.size(), 0.0);
  for (std::size_t s = 0; s < stages.size(); ++s) {
    load[static_cast<std::size_t>(rank_of_stage[s])] += worst(costs, {stages[s]});
  }
  return *std::max_element(load.begin(), load.end());
}

TEST(CutStages, MakesTheCostliestStageAsCheapAsCanBe) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    std::vector<double> costs;
    for (std::uint64_t i = 0; i < 5 + seed % 5; ++i) {
      costs.push_back(std::floor(10.0 * random_uniform(seed, i)));
    }
    for (int stages = 1; stages <= static_cast<int>(costs.size()); ++stages) {
      const auto cut = cut_stages(costs, one_rank_each(stages));
      ASSERT_EQ(cut.size(), static_cast<std::size_t>(stages));
      expect_covers(cut, static_cast<int>(costs.size()));
      for (const auto& [begin, end] : cut) EXPECT_LT(begin, end) << "an empty stage";
      EXPECT_DOUBLE_EQ(worst(costs, cut), least_worst(costs, stages))
          << "seed " << seed << ", " << stages << " stages";
    }
  }
}

TEST(CutStages, CountsALargeHeadAsTheLayersItWeighs) {
  // Embedding, six blocks, norm, and a head as heavy as two blocks.
  const auto cut = cut_stages({0, 1, 1, 1, 1, 1, 1, 0, 2}, one_rank_each(4));
  ASSERT_EQ(cut.size(), 4u);
  expect_covers(cut, 9);
  EXPECT_EQ(worst({0, 1, 1, 1, 1, 1, 1, 0, 2}, cut), 2.0);
}

TEST(CutStages, SparesTheRankThatHasALargeHead) {
  // A head as heavy as nine blocks on the rank that has the first of four stages too: the six
  // blocks go to the other rank, three to each of its stages.
  const std::vector<double> costs{0, 1, 1, 1, 1, 1, 1, 0, 9};
  const std::vector<int> ranks{0, 1, 1, 0};
  const auto cut = cut_stages(costs, ranks);
  expect_covers(cut, 9);
  EXPECT_EQ(worst(costs, cut), 9.0);
  EXPECT_EQ(worst_rank(costs, cut, ranks), 9.0);
}

TEST(CutStages, NeverMakesARankCostlierThanStagesAloneWould) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    std::vector<double> costs;
    for (std::uint64_t i = 0; i < 12; ++i) {
      costs.push_back(std::floor(10.0 * random_uniform(seed, i)));
    }
    const auto alone = cut_stages(costs, one_rank_each(6));
    for (const std::vector<int>& ranks :
         {std::vector<int>{0, 1, 2, 2, 1, 0}, {0, 1, 2, 0, 1, 2}, {0, 1, 0, 1, 0, 1}}) {
      const auto cut = cut_stages(costs, ranks);
      expect_covers(cut, 12);
      for (const auto& [begin, end] : cut) EXPECT_LT(begin, end) << "an empty stage";
      EXPECT_DOUBLE_EQ(worst(costs, cut), worst(costs, alone)) << "seed " << seed;
      EXPECT_LE(worst_rank(costs, cut, ranks), worst_rank(costs, alone, ranks)) << "seed " << seed;
    }
  }
}

TEST(CutStages, OfMoreStagesThanUnitsLeavesNeitherEndEmpty) {
  for (const int stages : {4, 5, 8}) {
    const auto cut = cut_stages({0, 3, 1}, one_rank_each(stages));
    ASSERT_EQ(cut.size(), static_cast<std::size_t>(stages));
    expect_covers(cut, 3);
    EXPECT_LT(cut.front().begin, cut.front().end);
    EXPECT_LT(cut.back().begin, cut.back().end);
  }
}

TEST(CutStages, OfOneStageIsEverything) {
  EXPECT_TRUE(cut_stages({1, 2, 3}, {0}).front() == (Units{0, 3}));
}

TEST(CutStages, OfRoutesGivesRanksBehindTheFirstEqualBlocks) {
  const auto cut = [](std::int64_t layers, int ranks) {
    ModelSpec spec;
    spec.layers = layers;
    std::vector<int> rank_of_stage(static_cast<std::size_t>(ranks));
    std::iota(rank_of_stage.begin(), rank_of_stage.end(), 0);
    rank_of_stage.push_back(0);
    return cut_stages(spec, 16, VocabularyPlacement::tensor, rank_of_stage);
  };
  // Embedding; blocks; final norm and head.
  EXPECT_EQ(cut(4, 5), (std::vector<Units>{{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 5}, {5, 7}}));
  // The first rank has the blocks that are left.
  EXPECT_EQ(cut(5, 3), (std::vector<Units>{{0, 2}, {2, 4}, {4, 6}, {6, 8}}));
  EXPECT_EQ(cut(12, 6).front(), (Units{0, 3}));
  EXPECT_EQ(cut(3, 2), (std::vector<Units>{{0, 1}, {1, 4}, {4, 6}}));
}

}  // namespace
}  // namespace heddle
