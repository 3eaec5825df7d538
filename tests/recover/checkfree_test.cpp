#include "recover/checkfree.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "base/error.h"

namespace heddle::recover {
namespace {

using Kind = StageRecovery::Kind;
using Values = std::vector<float>;

Values random_values(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0F, 0.02F);
  Values values(count);
  for (float& value : values) value = normal(random);
  return values;
}

/// The formula, with every rounding forced.
float formula(float before, float a, float after, float b) {
  volatile float left = a * before;
  volatile float right = b * after;
  volatile float above = left + right;
  volatile float below = a + b;
  return above / below;
}

TEST(CheckFree, TheMeanIsTheFormulaBitForBit) {
  const Values before = random_values(10007, 1), after = random_values(10007, 2);
  for (const auto& [n1, n2] : {std::pair(0.83, 1.0), {1e-9, 3.0}, {0.0, 0.4}, {7.1, 6.9}}) {
    for (const NormWeight by : {NormWeight::norm, NormWeight::squared}) {
      const float a = neighbour_weight(n1, by), b = neighbour_weight(n2, by);
      Values made(before.size());
      mean_of_neighbours(before, a, after, b, made);
      for (std::size_t i = 0; i < made.size(); ++i) {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(made[i]),
                  std::bit_cast<std::uint32_t>(formula(before[i], a, after[i], b)))
            << i;
      }
    }
  }
}

TEST(CheckFree, WeightsAreNormsOrTheirSquares) {
  EXPECT_EQ(neighbour_weight(3.0, NormWeight::norm), 3.0F);
  EXPECT_EQ(neighbour_weight(3.0, NormWeight::squared), 9.0F);
  Values made(1);
  mean_of_neighbours(Values{1.0F}, 9.0F, Values{3.0F}, 1.0F, made);
  EXPECT_EQ(made[0], 1.2F);
  mean_of_neighbours(Values{1.0F}, 0.0F, Values{3.0F}, 0.0F, made);
  EXPECT_EQ(made[0], 2.0F) << "before the first step both are zero";
  const float huge = neighbour_weight(1e30, NormWeight::squared);
  for (const float bad : {huge, -1.0F, std::nanf("")}) {
    EXPECT_THROW(mean_of_neighbours(Values{1.0F}, bad, Values{3.0F}, 1.0F, made), Error);
  }
}

TEST(CheckFree, BlocksOfStagesCorrespondByPosition) {
  Values up0 = random_values(6, 1), up1 = random_values(6, 2), norm0 = random_values(3, 3);
  Values up0_after = random_values(6, 4), up1_after = random_values(6, 5),
         norm0_after = random_values(3, 6);
  Values lost_up0(6), lost_up1(6), lost_norm0(3);
  const std::vector<StageTensor> before = {{0, "up", up0}, {1, "up", up1}, {0, "norm", norm0}};
  const std::vector<StageTensor> after = {
      {0, "norm", norm0_after}, {1, "up", up1_after}, {0, "up", up0_after}};
  const std::vector<StageTensor> lost = {
      {1, "up", lost_up1}, {0, "up", lost_up0}, {0, "norm", lost_norm0}};
  const Values kept = up0;
  fill_with_mean(before, 0.5F, after, 0.25F, lost);
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(lost_up0[i], formula(up0[i], 0.5F, up0_after[i], 0.25F));
    EXPECT_EQ(lost_up1[i], formula(up1[i], 0.5F, up1_after[i], 0.25F));
  }
  EXPECT_EQ(lost_norm0[2], formula(norm0[2], 0.5F, norm0_after[2], 0.25F));
  EXPECT_EQ(up0, kept) << "neighbours stay as they are";
  fill_with_copy(after, lost);
  EXPECT_EQ(lost_up0, up0_after);
  EXPECT_EQ(lost_up1, up1_after);
  EXPECT_EQ(lost_norm0, norm0_after);
  const std::vector<StageTensor> shorter = {{0, "up", up0}, {0, "norm", norm0}};
  try {
    fill_with_mean(shorter, 0.5F, after, 0.25F, lost);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.message(),
              "a stage cannot be made of its neighbour, which has no up of 6 elements in block 1");
  }
}

TEST(CheckFree, InnerStagesAreTheMeanOfLivingNeighbours) {
  const StageRecovery second = recovery_of(2, {0, 0, 1, 0, 0, 0}, CheckFree::inner);
  EXPECT_EQ(second.kind, Kind::mean);
  EXPECT_EQ(second.before, 1);
  EXPECT_EQ(second.after, 3);
  EXPECT_EQ(recovery_of(2, {0, 0, 1, 0, 1, 0}, CheckFree::inner).kind, Kind::mean);
  EXPECT_EQ(recovery_of(2, {0, 0, 1, 1, 0, 0}, CheckFree::inner).why,
            "stage 3 beside it is lost too");
  EXPECT_EQ(recovery_of(0, {1, 0, 0}, CheckFree::inner).why,
            "it is the first stage, which has the embedding");
  EXPECT_EQ(recovery_of(2, {0, 0, 1}, CheckFree::inner).why,
            "it is the last stage, which has the head");
  EXPECT_EQ(recovery_of(1, {0, 1, 0}, CheckFree::off).kind, Kind::impossible);
}

TEST(CheckFreePlus, EndsAreCopiesOfTheirPartners) {
  const std::vector<int> partners = {1, 0, -1, -1, 5, 4};
  for (int stage = 0; stage < 6; ++stage) {
    std::vector<bool> is_lost(6);
    is_lost[static_cast<std::size_t>(stage)] = true;
    const StageRecovery made = recovery_of(stage, is_lost, CheckFree::plus);
    const int partner = partners[static_cast<std::size_t>(stage)];
    EXPECT_EQ(partner_of(stage, 6), partner);
    EXPECT_EQ(made.kind, partner < 0 ? Kind::mean : Kind::copy);
    EXPECT_EQ(made.before, partner < 0 ? stage - 1 : partner);
  }
  EXPECT_EQ(recovery_of(0, {1, 1, 0, 0}, CheckFree::plus).why, "stage 1 beside it is lost too");
  EXPECT_EQ(recovery_of(1, {0, 1, 1, 0}, CheckFree::plus).kind, Kind::copy);
  EXPECT_EQ(recovery_of(2, {0, 1, 1, 0, 0, 0}, CheckFree::plus).kind, Kind::impossible);
  EXPECT_EQ(recovery_of(0, {1, 0}, CheckFree::plus).kind, Kind::copy);
  EXPECT_THROW(recovery_of(0, {1, 0, 0}, CheckFree::plus), Error);
  EXPECT_THROW(recovery_of(0, {1}, CheckFree::plus), Error);
}

TEST(CheckFree, LearningRatesAreRaisedOnce) {
  RaisedRates rates(3);
  rates.raise(1);
  rates.raise(1);
  EXPECT_EQ(rates.factor(0), 1.0);
  EXPECT_EQ(rates.factor(1), 1.1);
}

}  // namespace
}  // namespace heddle::recover
