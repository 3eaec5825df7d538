#pragma once

#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace heddle::ops {

// On flat contiguous tensors of equal length, f32 or f64 (CUDA: f32). Factors that lie beside them
// are f32, one element, as clip_factor (ops/reduce.h) makes them; absent: 1.

struct BlendArgs {
  double keep = 0.0, take = 1.0;
  Tensor clip = {};
  Tensor guard = {};  ///< no factor: only one that is not finite counts
};

/// x = keep * m + take * clip * x; m may be absent. A clip or a guard that is not finite makes all
/// of x NaN, which codecs note and leave their books alone for.
void blend(const Tensor& x, const Tensor& m, const BlendArgs& args, Stream& stream);

struct FrozenAdamArgs {
  double lr = 0.0;
  double eps = 1e-8;
  double weight_decay = 0.0;
  double first = 1.0, second = 1.0;  ///< corrections: what m and v are multiplied by
  bool masks = true;                 ///< elements whose v is 0 only decay
  Tensor guard = {};                 ///< one that is not finite leaves all tensors as they were
  Tensor p_low = {};                 ///< bf16, as long as p: receives p rounded to nearest even
};

/// A step of Adam whose second moment does not change any more:
///   m = made
///   p = p (1 - lr * weight_decay) - lr * first * m / (sqrt(second * v) + eps)
/// p and v may be absent: then m is all that changes.
void frozen_adam(const Tensor& p, const Tensor& made, const Tensor& m, const Tensor& v,
                 const FrozenAdamArgs& args, Stream& stream);

}  // namespace heddle::ops
