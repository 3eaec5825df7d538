#include "observe/ticks.h"

#include <gtest/gtest.h>

#include <cmath>

namespace heddle::observe {
namespace {

using Labels = std::vector<std::string>;

TEST(NiceTicks, AreRoundAndInside) {
  EXPECT_EQ(nice_ticks(0, 1200, 5), (std::vector<double>{0, 200, 400, 600, 800, 1000, 1200}));
  EXPECT_EQ(nice_ticks(-3, 3, 3), (std::vector<double>{-2, 0, 2}));
  EXPECT_EQ(tick_labels(nice_ticks(1.37, 1.68, 3)), (Labels{"1.4", "1.5", "1.6"}));
}

TEST(NiceTicks, OfNoRangeAreNone) {
  EXPECT_TRUE(nice_ticks(2, 2, 5).empty());
  EXPECT_TRUE(nice_ticks(0, INFINITY, 5).empty());
  EXPECT_TRUE(nice_ticks(NAN, 1, 5).empty());
}

TEST(LogTicks, AreAsManyAsThereIsRoomFor) {
  EXPECT_EQ(log_ticks(1, 7, 0.1), (std::vector<double>{1, 1.5, 2, 3, 5, 7}));
  EXPECT_EQ(log_ticks(1, 7, 0.3), (std::vector<double>{1, 2, 5}));
  EXPECT_EQ(tick_labels(log_ticks(1.07, 1.42, 0.2)), (Labels{"1.1", "1.2", "1.3", "1.4"}));
  EXPECT_EQ(tick_labels(log_ticks(0.0008, 15, 0.2)), (Labels{"0.001", "0.01", "0.1", "1", "10"}));
}

TEST(LogTicks, OfAThousandDecadesAreStillFew) {
  const auto ticks = log_ticks(1e-200, 1e200, 0.1);
  EXPECT_GE(ticks.size(), 3U);
  EXPECT_LE(ticks.size(), 11U);
}

TEST(LogTicks, OfNoPositiveRangeAreNone) {
  EXPECT_TRUE(log_ticks(0, 1, 0.1).empty());
  EXPECT_TRUE(log_ticks(-1, 1, 0.1).empty());
  EXPECT_TRUE(log_ticks(2, 2, 0.1).empty());
  EXPECT_TRUE(log_ticks(1, INFINITY, 0.1).empty());
}

TEST(TickLabels, OfAnAxisHaveOneNotation) {
  EXPECT_EQ(tick_labels({0, 0.5, 1}), (Labels{"0", "0.5", "1.0"}));
  EXPECT_EQ(tick_labels({0, 2e-5, 4e-5}), (Labels{"0", "2e-5", "4e-5"}));
  EXPECT_EQ(tick_labels({0, 500, 1000, 1500}), (Labels{"0", "500", "1,000", "1,500"}));
  EXPECT_EQ(tick_labels({0, 5000, 10000}), (Labels{"0", "5k", "10k"}));
  EXPECT_EQ(tick_labels({0, 1000, 12000}), (Labels{"0", "1k", "12k"}));
  EXPECT_EQ(tick_labels({9500, 10000, 10500}), (Labels{"9,500", "10,000", "10,500"}));
  EXPECT_EQ(tick_labels({0, 5e5, 1e6, 1.5e6}), (Labels{"0", "0.5M", "1.0M", "1.5M"}));
  EXPECT_EQ(tick_labels({1e9, 2e9}), (Labels{"1B", "2B"}));
  EXPECT_EQ(tick_labels({0, 5e-4, 1e-3, 1.5e-3}), (Labels{"0", "0.5e-3", "1.0e-3", "1.5e-3"}));
  EXPECT_EQ(tick_labels({1e-4, 2e-4, 3e-4}), (Labels{"1e-4", "2e-4", "3e-4"}));
  EXPECT_EQ(tick_labels({0.002, 0.004}), (Labels{"0.002", "0.004"}));
  EXPECT_EQ(tick_labels({2.3001, 2.3002}), (Labels{"2.3001", "2.3002"}));
  EXPECT_EQ(tick_labels({-0.5, 0, 0.5}), (Labels{"-0.5", "0", "0.5"}));
}

TEST(TickLabels, OverOrdersOfMagnitudeHaveTheDigitsEachNeeds) {
  EXPECT_EQ(tick_labels({0.01, 1, 100}), (Labels{"0.01", "1", "100"}));
  EXPECT_EQ(tick_labels({1e-5, 2e-4, 1e-2}), (Labels{"1e-5", "2e-4", "1e-2"}));
}

}  // namespace
}  // namespace heddle::observe
