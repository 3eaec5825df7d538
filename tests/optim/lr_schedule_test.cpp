#include "optim/lr_schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace heddle {
namespace {

using Shape = LrSchedule::Shape;

/// Ten steps of warm-up, then a hundred more.
LrSchedule schedule(Shape shape) {
  return {.shape = shape,
          .peak = 2.0,
          .final = 0.5,
          .warmup_steps = 10,
          .decay_steps = 20,
          .total_steps = 110};
}

TEST(LrSchedule, WarmsUpLinearlyToThePeakInEveryShape) {
  for (const Shape shape : {Shape::constant, Shape::linear, Shape::cosine, Shape::wsd}) {
    EXPECT_DOUBLE_EQ(schedule(shape).at(1), 0.2);
    EXPECT_DOUBLE_EQ(schedule(shape).at(5), 1.0);
    EXPECT_DOUBLE_EQ(schedule(shape).at(10), 2.0);
  }
}

TEST(LrSchedule, ConstantStaysAtThePeak) {
  EXPECT_DOUBLE_EQ(schedule(Shape::constant).at(11), 2.0);
  EXPECT_DOUBLE_EQ(schedule(Shape::constant).at(110), 2.0);
}

TEST(LrSchedule, LinearReachesTheFinalValueAtTheLastStep) {
  const auto linear = schedule(Shape::linear);
  EXPECT_DOUBLE_EQ(linear.at(11), 2.0 - 0.015);
  EXPECT_DOUBLE_EQ(linear.at(60), 1.25);
  EXPECT_DOUBLE_EQ(linear.at(110), 0.5);
  EXPECT_DOUBLE_EQ(linear.at(500), 0.5);
}

TEST(LrSchedule, CosineFallsSlowlyFastSlowly) {
  const auto cosine = schedule(Shape::cosine);
  EXPECT_DOUBLE_EQ(cosine.at(35), 0.5 + 0.75 * (1.0 + std::cos(std::numbers::pi / 4)));
  EXPECT_DOUBLE_EQ(cosine.at(60), 1.25);
  EXPECT_DOUBLE_EQ(cosine.at(110), 0.5);
}

TEST(LrSchedule, WsdDecaysOnlyAtTheEnd) {
  const auto wsd = schedule(Shape::wsd);
  EXPECT_DOUBLE_EQ(wsd.at(11), 2.0);
  EXPECT_DOUBLE_EQ(wsd.at(90), 2.0);
  EXPECT_DOUBLE_EQ(wsd.at(91), 2.0 - 0.075);
  EXPECT_DOUBLE_EQ(wsd.at(100), 1.25);
  EXPECT_DOUBLE_EQ(wsd.at(110), 0.5);
}

TEST(LrSchedule, WsdWhoseDecayIsLongerThanTheRunStartsItAfterTheWarmUp) {
  auto wsd = schedule(Shape::wsd);
  wsd.decay_steps = 1000;
  EXPECT_DOUBLE_EQ(wsd.at(10), 2.0);
  EXPECT_DOUBLE_EQ(wsd.at(60), 1.25);
}

TEST(LrSchedule, NeedsNoWarmUpAndMayBeAllWarmUp) {
  auto linear = schedule(Shape::linear);
  linear.warmup_steps = 0;
  EXPECT_DOUBLE_EQ(linear.at(55), 1.25);
  linear.warmup_steps = 110;
  EXPECT_DOUBLE_EQ(linear.at(110), 2.0);
}

TEST(LrSchedule, OfOneStepEndsAtTheFinalValue) {
  const LrSchedule one{
      .shape = Shape::cosine, .peak = 2.0, .final = 0.5, .warmup_steps = 0, .total_steps = 1};
  EXPECT_DOUBLE_EQ(one.at(1), 0.5);
}

}  // namespace
}  // namespace heddle
