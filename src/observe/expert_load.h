#pragma once

#include <cstdint>
#include <vector>

namespace heddle::observe {

/// How often the experts of a layer were chosen in a step.
struct ExpertLoad {
  std::int64_t layer = 0;            ///< its number in the model
  std::vector<std::int64_t> counts;  ///< choices, by expert
  std::int64_t dropped = 0;          ///< of them, for which there was no room
  std::int64_t lost_tokens = 0;      ///< tokens of which all were dropped

  std::int64_t choices() const;
  /// The busiest expert's choices over the mean: 1 at balance, the number of experts at worst.
  double most_over_mean() const;
};

/// Of all layers that have experts.
struct ExpertLoadPoint {
  std::int64_t step = 0;
  std::vector<ExpertLoad> layers;
};

}  // namespace heddle::observe
