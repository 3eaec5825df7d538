#include <gtest/gtest.h>

#include "parallel/schedule/generators/generators.h"
#include "simulator/play.h"

namespace heddle {
namespace {

constexpr VocabularyTimes kHalf = {.s = 0.3, .t = 0.2};

double bubble(const Schedule& compute_only, double hop = 0.0) {
  const Schedule lowered = lower(compute_only);
  EXPECT_TRUE(validate(lowered).empty());
  const Played played =
      play(lowered, even_times(lowered, {.f = 1.0, .b = 1.0, .w = 1.0, .hop = hop}), kHalf);
  EXPECT_NEAR(played.ideal, lowered.microbatches * 3.5, 1e-9);
  return played.cost - played.ideal;
}

TEST(SplitVocabulary, AddsNoBubbleToOneFOneB) {
  for (const auto& [ranks, mb] : {std::pair{2, 6}, {4, 8}, {4, 16}, {8, 64}, {16, 64}}) {
    const double of_one_f_one_b = 3.0 * (ranks - 1);
    EXPECT_NEAR(bubble(make_schedule(Pipeline::one_f_one_b, {ranks, mb, 1, 1})), of_one_f_one_b,
                1e-9);
    // Nothing waits for T, so its first fills some of the bubble.
    EXPECT_NEAR(bubble(make_schedule(Pipeline::one_f_one_b, {ranks, mb, 1, 2})),
                of_one_f_one_b - kHalf.t, 1e-9);
  }
}

TEST(SplitVocabulary, HoldsAMicroBatchMorePerBarrierThanOneFOneB) {
  for (const int ranks : {4, 8, 16}) {
    const auto plain = peak_in_flight(make_schedule(Pipeline::one_f_one_b, {ranks, 64}));
    const auto two_barriers =
        peak_in_flight(make_schedule(Pipeline::one_f_one_b, {ranks, 64, 1, 1}));
    const auto one_barrier =
        peak_in_flight(make_schedule(Pipeline::one_f_one_b, {ranks, 64, 1, 2}));
    for (std::size_t rank = 0; rank < plain.size(); ++rank) {
      EXPECT_EQ(two_barriers[rank], plain[rank] + 2);
      EXPECT_EQ(one_barrier[rank], plain[rank] + 1);
    }
  }
}

TEST(SplitVocabulary, WithoutWarmUpOffsetsWouldStallEveryRankInEveryPass) {
  auto offsets = generators::vocabulary_offsets(8, 1.0, 2.0);
  for (auto& offset : offsets) offset.warm_up = 0;
  EXPECT_NEAR(bubble(generators::vocabulary_one_f_one_b({8, 64, 1, 2}, offsets)), 841.0, 1e-9);
}

TEST(SplitVocabulary, PaysAPeriodPerBarrierInVHalf) {
  // V-Half without its reordered warm-up and cool-down has a bubble of 13 stages at 8 ranks.
  for (const int barriers : {1, 2}) {
    const int algorithm = 3 - barriers;
    const Schedule schedule = make_schedule(Pipeline::v_half, {8, 64, 1, algorithm});
    EXPECT_LT(bubble(schedule), 13.0 + barriers * 3.5) << barriers;
    EXPECT_EQ(peak_in_flight(schedule), std::vector<double>(8, 5.0 + barriers)) << barriers;
  }
}

TEST(SplitVocabulary, HidesHopsThatOneFOneBShows) {
  EXPECT_LT(bubble(make_schedule(Pipeline::one_f_one_b, {8, 64, 1, 2}), 0.1),
            play(lower(make_schedule(Pipeline::one_f_one_b, {8, 64})),
                 std::vector(8, StageTimes{1, 1, 1, 0.1}))
                    .makespan -
                64 * 3.0);
}

}  // namespace
}  // namespace heddle
