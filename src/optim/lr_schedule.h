#pragma once

#include <cstdint>

namespace heddle {

/// The learning rate as a function of the step: linear warm-up, then one of four shapes.
struct LrSchedule {
  enum class Shape { constant, linear, cosine, wsd };

  Shape shape = Shape::cosine;
  double peak = 3e-4;
  double final = 0.0;             ///< reached at the last step (linear, cosine, wsd)
  std::int64_t warmup_steps = 0;  ///< step s of the warm-up has peak * s / warmup_steps
  std::int64_t decay_steps = 0;   ///< wsd: length of the decay at the end
  std::int64_t total_steps = 1;

  /// `step` is counted from 1 to total_steps.
  double at(std::int64_t step) const;
};

}  // namespace heddle
