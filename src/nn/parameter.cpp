#include "nn/parameter.h"

#include <utility>

#include "ops/elementwise.h"

namespace heddle {

Tensor Parameter::part_of(const Tensor& whole, std::size_t part) const {
  std::int64_t first = 0;
  for (std::size_t i = 0; i < part; ++i) first += parts[i].rows;
  return whole.slice(0, first, first + parts[part].rows);
}

Shape Parameter::part_shape(std::size_t part) const {
  Shape result = shape;
  result.set(0, parts[part].rows);
  return result;
}

double Parameter::claim_grad() { return std::exchange(grad_is_stale_, false) ? 0.0 : 1.0; }

void Parameter::clear_stale_grad(Stream& stream) {
  if (std::exchange(grad_is_stale_, false)) ops::fill(grad, 0.0, stream);
}

}  // namespace heddle
