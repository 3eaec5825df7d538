#include "planner/linear_time.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/rng.h"

namespace heddle::planner {
namespace {

std::vector<std::array<double, 2>> points_of(const LinearTime& time, double noise) {
  std::vector<std::array<double, 2>> points;
  for (std::uint64_t i = 1; i <= 24; ++i) {
    const double elements = static_cast<double>(i) * (1 << 18);
    points.push_back({elements, time(elements) * (1 + noise * random_normal(7, i))});
  }
  return points;
}

TEST(LinearTime, FindsTheLineThatPointsAreOn) {
  const LinearTime line{.fixed = 2.87e-4, .per_element = 2.21e-10};
  const LinearFit fit = fit_linear_time(points_of(line, 0.0));
  EXPECT_NEAR(fit.time.fixed, line.fixed, 1e-12);
  EXPECT_NEAR(fit.time.per_element, line.per_element, 1e-18);
  EXPECT_NEAR(fit.r2, 1.0, 1e-12);
}

TEST(LinearTime, SaysHowWellNoisyPointsAreMet) {
  const LinearTime line{.fixed = 1e-4, .per_element = 3e-10};
  const LinearFit good = fit_linear_time(points_of(line, 0.01)),
                  bad = fit_linear_time(points_of(line, 0.3));
  EXPECT_NEAR(good.time.per_element, line.per_element, 0.02 * line.per_element);
  EXPECT_GT(good.r2, 0.99);
  EXPECT_LT(bad.r2, 0.95);
}

TEST(LinearTime, NeverBeginsBelowZero) {
  const std::vector<std::array<double, 2>> points = {{1.0, 0.5}, {2.0, 2.5}, {3.0, 4.5}};
  const LinearFit fit = fit_linear_time(points);
  EXPECT_EQ(fit.time.fixed, 0.0);
  EXPECT_NEAR(fit.time.per_element, (0.5 + 5.0 + 13.5) / 14.0, 1e-12);
}

TEST(LinearTime, NothingTakesNoTime) {
  const LinearTime line{.fixed = 1.0, .per_element = 1.0};
  EXPECT_EQ(line(0.0), 0.0);
  EXPECT_EQ(line(1.0), 2.0);
}

/// Large times vary by more than a small one takes: only shares of them tell where a line begins.
TEST(LinearTime, OfRelativeErrorsBeginsWhereSmallSizesDo) {
  const std::vector<std::array<double, 2>> points = {
      {10, 1.1}, {20, 1.2}, {1000, 12.0}, {2000, 19.0}};
  const LinearTime relative = fit_linear_time(points, FittedErrors::relative).time;
  EXPECT_NEAR(relative.fixed, 1.0, 0.02);
  EXPECT_NEAR(relative.per_element, 0.01, 1e-3);
  EXPECT_GT(fit_linear_time(points).time.fixed, 1.15);
  const std::vector<std::array<double, 2>> exact = {{1, 3.0}, {2, 5.0}, {7, 15.0}};
  const LinearFit same = fit_linear_time(exact, FittedErrors::relative);
  EXPECT_NEAR(same.time.fixed, 1.0, 1e-12);
  EXPECT_NEAR(same.time.per_element, 2.0, 1e-12);
  EXPECT_NEAR(same.r2, 1.0, 1e-12);
}

}  // namespace
}  // namespace heddle::planner
