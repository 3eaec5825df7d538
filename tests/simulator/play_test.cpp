#include "simulator/play.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <array>

#include "parallel/schedule/make_schedule.h"

namespace heddle {
namespace {

Played play_even(std::string_view name, const PipeShape& shape, const StageTimes& whole_rank = {}) {
  const Schedule lowered = lower(make_schedule(pipeline_named(name), shape));
  return play(lowered, even_times(lowered, whole_rank));
}

/// Cost beyond ideal in half-stage units of f = b = w = 1: the units of the V schedules' table.
double bubble_in_half_stages(std::string_view name, int ranks, int microbatches) {
  const Played played =
      play_even(name, {ranks, microbatches}, {.f = 2.0, .b = 2.0, .w = 2.0, .hop = 0.0});
  return played.cost - played.ideal;
}

struct ZeroBubbleRow {
  int ranks, microbatches;
  StageTimes times;
  double one_f_one_b, zb_h1, zb_h2;
};

/// Qi et al. 2024, tables 5 and 9.
constexpr std::array<ZeroBubbleRow, 12> kZeroBubbleRows = {{
    {8, 24, {18.522, 18.086, 9.337, .601}, .2431, .1585, .1083},
    {8, 32, {18.513, 18.086, 9.331, .626}, .1985, .1242, .0837},
    {8, 64, {18.546, 18.097, 9.321, .762}, .1240, .0674, .0444},
    {8, 24, {29.718, 29.444, 19.927, .527}, .2347, .1323, .0698},
    {8, 32, {29.802, 29.428, 19.530, .577}, .1898, .1045, .0559},
    {8, 64, {29.935, 29.621, 19.388, .535}, .1091, .0554, .0294},
    {16, 48, {11.347, 11.248, 8.132, .377}, .2552, .1397, .0672},
    {16, 64, {11.307, 11.254, 8.101, .379}, .2082, .1088, .0516},
    {16, 128, {11.325, 11.308, 8.109, .378}, .1251, .0576, .0266},
    {32, 96, {10.419, 10.207, 7.715, .408}, .2646, .1421, .0641},
    {32, 128, {10.408, 10.204, 7.703, .408}, .2168, .1106, .0490},
    {32, 256, {10.402, 10.248, 7.698, .460}, .1352, .0594, .0257},
}};

TEST(Play, GivesTheRatesOfTheZeroBubblePaperToFourDecimals) {
  constexpr double kHalfADigit = 0.5e-4 + 1e-9;
  for (const ZeroBubbleRow& row : kZeroBubbleRows) {
    const auto rate = [&](std::string_view name) {
      return play_even(name, {row.ranks, row.microbatches}, row.times).bubble_cost_rate;
    };
    EXPECT_NEAR(rate("1f1b"), row.one_f_one_b, kHalfADigit) << row.ranks << row.microbatches;
    EXPECT_NEAR(rate("zb-h1"), row.zb_h1, kHalfADigit) << row.ranks << row.microbatches;
    EXPECT_NEAR(rate("zb-h2"), row.zb_h2, kHalfADigit) << row.ranks << row.microbatches;
  }
}

TEST(Play, OfTheVShapesHasTheBubblesOfTheirPapers) {
  EXPECT_EQ(bubble_in_half_stages("v-min", 4, 16), 11.0);
  EXPECT_EQ(bubble_in_half_stages("v-min", 8, 64), 27.0);
  EXPECT_EQ(bubble_in_half_stages("v-min", 16, 64), 59.0);
  EXPECT_EQ(bubble_in_half_stages("v-half", 4, 16), 5.0);
  EXPECT_EQ(bubble_in_half_stages("v-half", 8, 64), 17.0);
  EXPECT_EQ(bubble_in_half_stages("v-half", 16, 64), 41.0);
  for (const auto& [ranks, microbatches] :
       {std::pair{2, 4}, {4, 8}, {4, 16}, {8, 16}, {8, 24}, {8, 64}, {16, 64}}) {
    EXPECT_EQ(bubble_in_half_stages("zb-v", ranks, microbatches), 0.0);
  }
}

TEST(Play, OfVMinWithUnequalTimesKeepsABubblePerPeriodAndOfVHalfDoesNot) {
  const StageTimes times{.f = 3.0, .b = 4.0, .w = 2.0, .hop = 0.0};
  EXPECT_LT(play_even("v-half", {16, 256}, times).bubble_cost_rate, 0.0395);
  for (const int ranks : {4, 8, 16}) {
    for (const int microbatches : {64, 256}) {
      EXPECT_GT(play_even("v-min", {ranks, microbatches}, times).bubble_cost_rate, 0.25) << ranks;
    }
  }
}

TEST(Play, OfGpipeAndOneFOneBHasTheSameBubble) {
  EXPECT_EQ(play_even("gpipe", {4, 8}).makespan, 33.0);
  for (const auto& [ranks, microbatches] : {std::pair{1, 3}, {2, 5}, {4, 8}, {8, 8}, {5, 32}}) {
    for (const auto name : {"gpipe", "1f1b"}) {
      const Played played = play_even(name, {ranks, microbatches});
      const double bubble = ranks - 1, work = microbatches;
      EXPECT_DOUBLE_EQ(played.makespan, 3.0 * (work + bubble));
      EXPECT_DOUBLE_EQ(played.bubble_fraction, bubble / (work + bubble));
      EXPECT_DOUBLE_EQ(played.bubble_over_ideal, bubble / work);
    }
  }
}

TEST(Play, OfInterleavedDividesTheBubbleByTheChunksForAnyMicroBatches) {
  EXPECT_DOUBLE_EQ(play_even("interleaved", {4, 8, 2}).bubble_over_ideal, 0.1875);
  EXPECT_DOUBLE_EQ(play_even("interleaved", {8, 32, 4}).bubble_over_ideal, 0.0546875);
  for (int ranks = 2; ranks <= 8; ++ranks) {
    for (const int chunks : {2, 3, 4}) {
      for (int mb = ranks; mb <= 20; ++mb) {
        EXPECT_NEAR(play_even("interleaved", {ranks, mb, chunks}).bubble_over_ideal,
                    (ranks - 1.0) / (chunks * mb), 1e-12)
            << ranks << " x " << mb << " x " << chunks;
      }
    }
  }
}

TEST(Play, KeepsTheThreeMetricsApart) {
  const Played h2 = play_even("zb-h2", {4, 8});
  EXPECT_EQ(h2.makespan, 27.0);
  EXPECT_EQ(h2.cost, 24.0);
  EXPECT_EQ(h2.bubble_cost_rate, 0.0);
  EXPECT_DOUBLE_EQ(h2.bubble_fraction, 3.0 / 27.0);
  EXPECT_DOUBLE_EQ(h2.bubble_over_ideal, 3.0 / 24.0);
  EXPECT_EQ(play_even("zb-h1", {4, 8}).cost, 24.0 + 3.0);
  EXPECT_EQ(play_even("1f1b", {4, 8}).cost, 24.0 + 9.0);
}

TEST(Play, OfFewMicroBatchesIsAsLongAsTheZeroBubblePaperSays) {
  const StageTimes times{.f = 3.0, .b = 4.0, .w = 2.0, .hop = 0.0};
  for (int mb = 1; mb <= 6; ++mb) {
    EXPECT_DOUBLE_EQ(play_even("1f1b", {6, mb}, times).makespan, (mb + 5) * 9.0);
    EXPECT_DOUBLE_EQ(play_even("zb-h1", {6, mb}, times).makespan, (mb + 5) * 7.0 + 2.0);
  }
}

TEST(Play, ReceivesAHopAfterTheSendAndHandsOverInNoTime) {
  const Played played = play_even("v-min", {2, 1}, {.f = 2.0, .b = 4.0, .w = 6.0, .hop = 0.5});
  std::string text;
  for (const auto& [action, begin, end] : played.by_rank[1]) {
    text += fmt::format("{} {}-{}; ", to_text(action), begin, end);
  }
  EXPECT_EQ(text,
            "ra0 0-1.5; F0 1.5-2.5; F0 2.5-3.5; sa0 3.5-3.5; rg0 3.5-7.5; B0 7.5-9.5; B0 9.5-11.5; "
            "sg0 11.5-11.5; W0 11.5-14.5; W0 14.5-17.5; reduce 17.5-17.5; step 17.5-17.5; ");
}

TEST(Play, TakesEachStagesOwnTimes) {
  const Schedule lowered = lower(make_schedule(Pipeline::one_f_one_b, {2, 2}));
  const std::vector<StageTimes> times = {{1.0, 1.0, 1.0, 0.0}, {2.0, 2.0, 2.0, 0.0}};
  const Played played = play(lowered, times);
  EXPECT_EQ(played.makespan, 1.0 + 2 * 6.0 + 2.0);
  EXPECT_EQ(played.ideal, 12.0);
  EXPECT_DOUBLE_EQ(played.bubble_fraction, (2 * 15.0 - 18.0) / (2 * 15.0));
}

TEST(Play, OfATimelessStepHasNoBubble) {
  const Played played = play_even("1f1b", {2, 2}, {.f = 0.0, .b = 0.0, .w = 0.0, .hop = 0.0});
  EXPECT_EQ(played.makespan, 0.0);
  EXPECT_EQ(played.bubble_fraction, 0.0);
}

}  // namespace
}  // namespace heddle
