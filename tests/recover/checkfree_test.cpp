#include "recover/checkfree.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "base/error.h"
#include "recover/neighbour_source.h"

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
    const auto a = static_cast<float>(n1), b = static_cast<float>(n2);
    Values made(before.size());
    mean_of_neighbours(before, a, after, b, made);
    for (std::size_t i = 0; i < made.size(); ++i) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(made[i]),
                std::bit_cast<std::uint32_t>(formula(before[i], a, after[i], b)))
          << i;
    }
  }
}

TEST(CheckFree, WeightsAreNorms) {
  Values made(1);
  mean_of_neighbours(Values{1.0F}, 9.0F, Values{3.0F}, 1.0F, made);
  EXPECT_EQ(made[0], 1.2F);
  mean_of_neighbours(Values{1.0F}, 0.0F, Values{3.0F}, 0.0F, made);
  EXPECT_EQ(made[0], 2.0F) << "before the first step both are zero";
  for (const float bad : {std::numeric_limits<float>::infinity(), -1.0F, std::nanf("")}) {
    EXPECT_THROW(mean_of_neighbours(Values{1.0F}, bad, Values{3.0F}, 1.0F, made), Error);
  }
}

TEST(CheckFree, BlocksOfStagesCorrespondByPosition) {
  EXPECT_EQ(block_of("model.layers.12.mlp.up_proj.weight"), 12);
  EXPECT_EQ(block_of("h.3.attn.c_attn.weight"), 3);
  EXPECT_EQ(block_of("model.embed_tokens.weight"), -1);
  EXPECT_EQ(in_block("model.layers.12.mlp.up_proj.weight", 3), "model.layers.3.mlp.up_proj.weight");
  const StageBlocks even{{0, 0, 3, 6, 9}}, uneven{{0, 2, 5, 8}};
  EXPECT_TRUE(even.are_even());
  EXPECT_EQ(even.first(), 1);
  EXPECT_FALSE(uneven.are_even());
  EXPECT_FALSE(StageBlocks().are_even());
  PieceSource mean{.stage = 2, .kind = PieceSource::Kind::neighbours};
  mean.recovery = {.kind = Kind::mean, .before = 1, .after = 3};
  const auto lost = lost_blocks({PieceSource{}, mean}, even);
  ASSERT_EQ(lost.size(), 1U);
  EXPECT_EQ(lost[0].begin, 3);
  EXPECT_EQ(lost[0].end, 6);
  EXPECT_EQ(lost[0].before, 0);
  EXPECT_EQ(lost[0].after, 6);
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
            "it is the first stage, with none before it");
  EXPECT_EQ(recovery_of(2, {0, 0, 1}, CheckFree::inner).why,
            "it is the last stage, with none behind it");
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

TEST(CheckFreePlus, StagesCountFromTheFirstWithBlocks) {
  const StageRecovery made = recovery_of(1, {0, 1, 0, 0, 0}, CheckFree::plus, 1);
  EXPECT_EQ(made.kind, Kind::copy);
  EXPECT_EQ(made.before, 2);
  EXPECT_EQ(recovery_of(4, {0, 0, 0, 0, 1}, CheckFree::plus, 1).before, 3);
  EXPECT_EQ(recovery_of(0, {1, 0, 0, 0, 0}, CheckFree::plus, 1).why,
            "embedding and head cannot be made of other stages");
  EXPECT_EQ(recovery_of(2, {0, 1, 1, 0, 0}, CheckFree::plus, 1).why,
            "stage 1 beside it is lost too");
}

}  // namespace
}  // namespace heddle::recover
