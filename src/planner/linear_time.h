#pragma once

#include <array>
#include <span>

namespace heddle::planner {

/// Seconds of an operation by its size: a line.
struct LinearTime {
  double fixed = 0.0, per_element = 0.0;

  /// Nothing takes no time.
  double operator()(double elements) const {
    return elements > 0.0 ? fixed + per_element * elements : 0.0;
  }
};

struct LinearFit {
  LinearTime time = {};
  double r2 = 0.0;  ///< share of the variance that the line explains
};

/// Which errors are least: seconds, or their shares of what was measured. Where sizes are far
/// apart, the first lets what large ones vary by decide where the line begins.
enum class FittedErrors { absolute, relative };

/// Least squares through (elements, seconds) of at least two sizes. Where the best line would begin
/// below zero, the best one through zero.
LinearFit fit_linear_time(std::span<const std::array<double, 2>> points,
                          FittedErrors errors = FittedErrors::absolute);

}  // namespace heddle::planner
