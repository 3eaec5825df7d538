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

/// Of six stages the third and the fifth are left out, and rest on the ranks before them.
TEST(CheckFree, StagesThatAreLeftOutAreStagesWithoutARank) {
  const StageBlocks whole{{0, 2, 4, 6, 8, 10, 12}};
  EXPECT_EQ(cut_without(whole, {2, 4}), (std::vector<int>{2, 4, 4, 2}));
  const std::vector<LostBlocks> left_out = {{.begin = 8, .end = 10}, {.begin = 4, .end = 6}};
  EXPECT_EQ(numbers_of(left_out), (std::vector<int>{4, 5, 8, 9}));
  const Stages stages = stages_of({{0, 2, 6, 10, 12}}, 4, left_out);
  EXPECT_EQ(stages.blocks.begins, whole.begins);
  EXPECT_EQ(stages.rank_of, (std::vector<int>{0, 1, -1, 2, -1, 3}));
  EXPECT_EQ(stages.left_out(), (std::vector<int>{2, 4}));
  EXPECT_EQ(stages_of(whole, 6, {}).rank_of, (std::vector<int>{0, 1, 2, 3, 4, 5}));
  // Cut otherwise they lie on several ranks, or between blocks of one.
  const Stages across = stages_of({{0, 5, 7, 12}}, 3, left_out);
  EXPECT_EQ(across.blocks.begins, (std::vector<int>{0, 4, 6, 7, 8, 10, 12}));
  EXPECT_EQ(across.rank_of, (std::vector<int>{0, -1, 1, 2, -1, 2}));
  // A first rank with embedding and head alone.
  const Stages apart = stages_of({{0, 0, 2, 3}}, 3, {{.begin = 1, .end = 2}});
  EXPECT_EQ(apart.blocks.begins, (std::vector<int>{0, 0, 1, 2, 3}));
  EXPECT_EQ(apart.rank_of, (std::vector<int>{0, 1, -1, 2}));
  EXPECT_EQ(apart.blocks.stage_of(0), 1);
  EXPECT_EQ(apart.blocks.stage_of(2), 3);
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
