#pragma once

#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace heddle::ops {

struct AdamWArgs {
  double lr = 0.0;
  double beta1 = 0.9, beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.0;
  double grad_scale = 1.0;  ///< gradients are multiplied by this first: clipping folded in
  std::int64_t step = 1;    ///< counted from 1, for bias correction
  /// A further factor on the gradients that lies beside them: f32, one element (ops/reduce.h,
  /// clip_factor). One that is not finite leaves all tensors as they were.
  Tensor clip = {};
  Tensor p_low = {};  ///< bf16, as long as p: receives p rounded to nearest even
};

/// One AdamW update with decoupled decay (Loshchilov and Hutter) on flat contiguous tensors of
/// equal length, f32 or f64 (CUDA: f32):
///   g' = grad_scale * clip * g;  m = b1 m + (1 - b1) g';  v = b2 v + (1 - b2) g'^2
///   p = p (1 - lr * weight_decay) - lr * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
void adamw(const Tensor& p, const Tensor& g, const Tensor& m, const Tensor& v,
           const AdamWArgs& args, Stream& stream);

}  // namespace heddle::ops
