#pragma once

#include <cmath>

#include "ops/adamw.h"

namespace heddle::ops {

/// What one AdamW step multiplies by, worked out in double once and used in T for every element.
template <class T>
struct AdamWFactors {
  explicit AdamWFactors(const AdamWArgs& args, double clip = 1.0)
      : grad(static_cast<T>(args.grad_scale * clip)),
        beta1(static_cast<T>(args.beta1)),
        rest1(static_cast<T>(1.0 - args.beta1)),
        beta2(static_cast<T>(args.beta2)),
        rest2(static_cast<T>(1.0 - args.beta2)),
        keep(static_cast<T>(1.0 - args.lr * args.weight_decay)),
        eps(static_cast<T>(args.eps)) {
    const auto t = static_cast<double>(args.step);
    rate = static_cast<T>(args.lr / (1.0 - std::pow(args.beta1, t)));
    root = static_cast<T>(1.0 / std::sqrt(1.0 - std::pow(args.beta2, t)));
  }
  T grad, beta1, rest1, beta2, rest2, keep, eps;
  T rate;  ///< the learning rate with the first moment's correction
  T root;  ///< the second moment's correction, outside the root
};

}  // namespace heddle::ops
