#include "planner/experts_schedule.h"

#include <gtest/gtest.h>

#include <map>

#include "planner/fsmoe_beds.h"

namespace heddle::planner {
namespace {

TEST(ExpertsSchedule, SizesAreThoseOfThePaper) {
  const ExpertsLayerShape layer{.tokens = 4096,
                                .rows_per_token = 2.4,
                                .hidden = 4096,
                                .width = 14336,
                                .products = 3,
                                .shards = 8};
  EXPECT_DOUBLE_EQ(layer.exchanged(), 2.4 * 4096 * 4096 / 8);
  EXPECT_DOUBLE_EQ(layer.gathered(), 2.4 * 4096 * 4096);
  EXPECT_DOUBLE_EQ(layer.multiplications(), 2.4 * 4096 * 4096 * 14336 / 8 * 3);
}

TEST(ExpertsSchedule, ChunksShareElementsAndEachHasItsFixedTime) {
  const FsmoeBed bed = fsmoe_bed_b();
  const ExpertsLayerShape layer{
      .tokens = 1024, .hidden = 1024, .width = 2048, .products = 2, .shards = 4};
  const auto whole = chunk_seconds(bed.timings, layer, ExpertsDirection::forward, 1),
             part = chunk_seconds(bed.timings, layer, ExpertsDirection::forward, 4),
             back = chunk_seconds(bed.timings, layer, ExpertsDirection::backward, 4);
  EXPECT_NEAR(4 * part.exchange - whole.exchange, 3 * bed.timings.exchange.fixed, 1e-12);
  EXPECT_NEAR(4 * part.expert - whole.expert, 3 * 2 * bed.timings.product.fixed, 1e-12);
  EXPECT_DOUBLE_EQ(back.expert, 2 * part.expert);
  EXPECT_DOUBLE_EQ(back.gather, part.gather);
}

TEST(ExpertsSchedule, WidthThatIsNotDividedNeedsNoGather) {
  const ExpertsLayerShape layer{.tokens = 64, .hidden = 64, .width = 64, .shards = 1};
  const auto seconds = chunk_seconds(fsmoe_bed_a().timings, layer, ExpertsDirection::forward, 1);
  EXPECT_EQ(seconds.gather, 0.0);
  EXPECT_EQ(seconds.scatter, 0.0);
}

/// The degree is the best of those tried, and backward often wants another than forward.
TEST(ExpertsSchedule, DegreesAreChosenForEachPass) {
  const FsmoeBed bed = fsmoe_bed_b();
  int different = 0, all = 0;
  for_each_fsmoe_layer(bed, [&](const ExpertsBlock& block) {
    std::map<ExpertsDirection, int> degrees;
    for (const auto direction : {ExpertsDirection::forward, ExpertsDirection::backward}) {
      const ChosenPass chosen = choose_pass(bed.timings, block.experts, direction, false);
      for (const int degree : kExpertsDegrees) {
        const ChosenPass other = pass_of(bed.timings, block.experts, direction, false, degree);
        ASSERT_LE(chosen.seconds, other.seconds);
      }
      degrees[direction] = chosen.shape.degree;
    }
    different += degrees[ExpertsDirection::forward] != degrees[ExpertsDirection::backward];
    ++all;
  });
  EXPECT_EQ(all, 486);
  EXPECT_GT(different, all / 3);
}

/// Mean speedups over the first method; docs/studies/experts-schedules.md has them all.
std::map<ExpertsMethod, double> speedups(const FsmoeBed& bed) {
  std::map<ExpertsMethod, double> sums;
  int count = 0;
  for_each_fsmoe_layer(bed, [&](const ExpertsBlock& block) {
    const double first = plan_experts(bed.timings, block, 1, ExpertsMethod::pipelined).seconds;
    double before = first;
    for (const ExpertsMethod method : kExpertsMethods) {
      const double seconds = plan_experts(bed.timings, block, 1, method).seconds;
      EXPECT_LE(seconds, before + 1e-9) << name_of(method);
      before = seconds;
      sums[method] += first / seconds;
    }
    ++count;
  });
  for (auto& [method, sum] : sums) sum /= count;
  return sums;
}

TEST(ExpertsSchedule, PublishedSpeedupsAreMetWithinFivePercent) {
  for (const FsmoeBed& bed : {fsmoe_bed_a(), fsmoe_bed_b()}) {
    const double speedup = speedups(bed).at(ExpertsMethod::lanes);
    EXPECT_NEAR(speedup / bed.published, 1.0, 0.05) << bed.name << ": " << speedup;
  }
}

/// Slices are fine enough for many layers: what a layer gains does not depend on how many there
/// are, but for the gradients that are left at the end.
TEST(ExpertsSchedule, ManyLayersGainAsMuchAsOneOfMany) {
  const FsmoeBed bed = fsmoe_bed_b();
  const ExpertsLayerShape layer{
      .tokens = 1024, .rows_per_token = 2.4, .hidden = 2048, .width = 4096, .shards = 4};
  const ExpertsBlock block = attention_and_experts(bed.timings, layer, 1);
  const auto speedup = [&](int layers) {
    return plan_experts(bed.timings, block, layers, ExpertsMethod::pipelined).seconds /
           plan_experts(bed.timings, block, layers, ExpertsMethod::lanes).seconds;
  };
  EXPECT_NEAR(speedup(100) / speedup(1), 1.0, 0.02);
}

TEST(ExpertsSchedule, AStackOfLayersSendsEveryGradientOnce) {
  const FsmoeBed bed = fsmoe_bed_a();
  const ExpertsLayerShape layer{
      .tokens = 1024, .rows_per_token = 2.4, .hidden = 2048, .width = 4096, .shards = 8};
  const ExpertsBlock block = attention_and_experts(bed.timings, layer, 1);
  const ExpertsStep step = plan_experts(bed.timings, block, 6, ExpertsMethod::lanes);
  double sent = step.backward.behind;
  for (const auto& one : step.backward.layers) sent += one.with_experts + one.with_dense;
  EXPECT_NEAR(sent, 6 * block.gradients, 1e-3);
  EXPECT_GE(step.backward.behind, block.gradients - 1e-3);  // of the last layer at least
}

}  // namespace
}  // namespace heddle::planner
