#include "nn/parameter.h"

#include <utility>

#include "ops/elementwise.h"

namespace heddle {

std::vector<Parameter::Region> Parameter::regions() const {
  if (!tail) return {{0, shape.count(), layout}};
  const std::int64_t middle = tail->first_row * (shape.count() / shape[0]);
  return {{0, middle, layout}, {middle, shape.count(), tail->layout}};
}

double Parameter::claim_grad() { return std::exchange(grad_is_stale_, false) ? 0.0 : 1.0; }

void Parameter::clear_stale_grad(Stream& stream) {
  if (std::exchange(grad_is_stale_, false)) ops::fill(grad, 0.0, stream);
}

}  // namespace heddle
