#include "optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace heddle {

double LrSchedule::at(std::int64_t step) const {
  if (step <= warmup_steps) {
    return peak * static_cast<double>(step) / static_cast<double>(warmup_steps);
  }
  if (shape == Shape::constant) return peak;
  // The part of the way from the peak to the final value: from the end of the warm-up, or for wsd
  // from the start of its decay, to the last step.
  const std::int64_t start =
      shape == Shape::wsd ? std::max(warmup_steps, total_steps - decay_steps) : warmup_steps;
  if (step <= start) return peak;
  const auto span = static_cast<double>(std::max<std::int64_t>(1, total_steps - start));
  const double way = std::min(1.0, static_cast<double>(step - start) / span);
  const double left =
      shape == Shape::cosine ? 0.5 * (1.0 + std::cos(std::numbers::pi * way)) : 1.0 - way;
  return final + (peak - final) * left;
}

}  // namespace heddle
