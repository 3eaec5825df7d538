#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace heddle {

/// The value below which the share `q` of the values lies, between two neighbours where it falls
/// between them; 0.5 is the median. There must be a value.
inline double quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  const double at = q * static_cast<double>(values.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (values[high] - values[low]) * (at - static_cast<double>(low));
}

}  // namespace heddle
