#include "comm/waiting_line.h"

#include <gtest/gtest.h>

#include <numeric>

namespace heddle {
namespace {

TEST(RankList, JoinsNeighboursAndEndsInAnd) {
  EXPECT_EQ(rank_list({}), "");
  EXPECT_EQ(rank_list({3}), "3");
  EXPECT_EQ(rank_list({1, 2}), "1 and 2");
  EXPECT_EQ(rank_list({1, 2, 3}), "1-3");
  EXPECT_EQ(rank_list({1, 2, 3, 7, 9, 10}), "1-3, 7, 9 and 10");
}

TEST(RankList, IsShortForThousandsOfRanks) {
  std::vector<int> odd(1000);
  for (std::size_t i = 0; i < odd.size(); ++i) odd[i] = 2 * static_cast<int>(i) + 1;
  const std::string text = rank_list(odd);
  EXPECT_LT(text.size(), 120U) << text;
  EXPECT_TRUE(text.ends_with("and 980 more")) << text;
  std::vector<int> all(1000);
  std::iota(all.begin(), all.end(), 1);
  EXPECT_EQ(rank_list(all), "1-1000");
}

}  // namespace
}  // namespace heddle
