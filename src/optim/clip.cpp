#include "optim/clip.h"

#include <algorithm>

namespace heddle {

double clip_scale(double norm, double limit) {
  return limit > 0.0 ? std::min(1.0, limit / (norm + 1e-6)) : 1.0;
}

}  // namespace heddle
