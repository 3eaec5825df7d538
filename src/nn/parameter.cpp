#include "nn/parameter.h"

#include <utility>

#include "ops/elementwise.h"

namespace heddle {

double Parameter::claim_grad() { return std::exchange(grad_is_stale_, false) ? 0.0 : 1.0; }

void Parameter::clear_stale_grad(Stream& stream) {
  if (std::exchange(grad_is_stale_, false)) ops::fill(grad, 0.0, stream);
}

}  // namespace heddle
