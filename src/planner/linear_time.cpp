#include "planner/linear_time.h"

#include "base/check.h"

namespace heddle::planner {

LinearFit fit_linear_time(std::span<const std::array<double, 2>> points) {
  const double count = static_cast<double>(points.size());
  double mean_x = 0.0, mean_y = 0.0;
  for (const auto& [x, y] : points) {
    mean_x += x / count;
    mean_y += y / count;
  }
  double xx = 0.0, xy = 0.0, yy = 0.0, raw_xx = 0.0, raw_xy = 0.0;
  for (const auto& [x, y] : points) {
    xx += (x - mean_x) * (x - mean_x);
    xy += (x - mean_x) * (y - mean_y);
    yy += (y - mean_y) * (y - mean_y);
    raw_xx += x * x;
    raw_xy += x * y;
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
