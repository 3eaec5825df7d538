#include "planner/linear_time.h"

#include "base/check.h"

namespace heddle::planner {

LinearFit fit_linear_time(std::span<const std::array<double, 2>> points, FittedErrors errors) {
  const auto weight_of = [&](double seconds) {
    return errors == FittedErrors::relative ? 1.0 / (seconds * seconds) : 1.0;
  };
  double weights = 0.0, mean_x = 0.0, mean_y = 0.0, plain_mean_y = 0.0;
  for (const auto& [x, y] : points) {
    const double weight = weight_of(y);
    weights += weight;
    mean_x += weight * x;
    mean_y += weight * y;
    plain_mean_y += y / static_cast<double>(points.size());
  }
  mean_x /= weights;
  mean_y /= weights;
  double xx = 0.0, xy = 0.0, yy = 0.0, raw_xx = 0.0, raw_xy = 0.0;
  for (const auto& [x, y] : points) {
    const double weight = weight_of(y);
    xx += weight * (x - mean_x) * (x - mean_x);
    xy += weight * (x - mean_x) * (y - mean_y);
    yy += (y - plain_mean_y) * (y - plain_mean_y);
    raw_xx += weight * x * x;
    raw_xy += weight * x * y;
  }
  HEDDLE_CHECK(xx > 0.0, "a line needs two sizes");
  LinearTime time{.fixed = mean_y - xy / xx * mean_x, .per_element = xy / xx};
  if (time.fixed < 0.0) time = {.fixed = 0.0, .per_element = raw_xy / raw_xx};
  double left = 0.0;
  for (const auto& [x, y] : points) {
    const double error = y - time.fixed - time.per_element * x;
    left += error * error;
  }
  return {.time = time, .r2 = yy > 0.0 ? 1.0 - left / yy : 1.0};
}

}  // namespace heddle::planner
