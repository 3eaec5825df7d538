#include "optim/clip.h"

#include <algorithm>
#include <cmath>

#include "ops/reduce.h"

namespace heddle {

double global_grad_norm(std::span<const OptShard> shards, Stream& stream) {
  double squares = 0.0;
  for (const OptShard& shard : shards) squares += ops::sum_of_squares(shard.grad, stream);
  return std::sqrt(squares);
}

double clip_scale(double norm, double limit) {
  return limit > 0.0 ? std::min(1.0, limit / (norm + 1e-6)) : 1.0;
}

}  // namespace heddle
