#pragma once

#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace heddle::ops {

// On flat contiguous tensors of equal length, f32 or f64 (CUDA: f32). `clip` is a factor on the
// gradients that lies beside them: f32, one element (ops/reduce.h, clip_factor); absent: 1. One
// that is not finite leaves all tensors as they were.

struct SgdArgs {
  double lr = 0.0;
  double momentum = 0.0;
  double dampening = 0.0;
  bool nesterov = false;
  double weight_decay = 0.0;  ///< added to the gradient
  bool is_first = false;      ///< the momentum begins as the gradient
  Tensor clip = {};
  Tensor guard = {};  ///< as clip, but no factor: only one that is not finite counts
  Tensor p_low = {};  ///< bf16, as long as p: receives p rounded to nearest even
};

/// One step of gradient descent with momentum, as torch.optim.SGD:
///   g' = clip * g + weight_decay * p
///   m = momentum * m + (1 - dampening) * g', or g' in the first step
///   p = p - lr * (nesterov ? g' + momentum * m : m)
/// Without momentum m is absent, and p = p - lr * g'.
void sgd(const Tensor& p, const Tensor& g, const Tensor& m, const SgdArgs& args, Stream& stream);

struct RunningMeanArgs {
  double momentum = 0.0;
  bool nesterov = false;
  Tensor clip = {};
};

/// Puts the running mean of gradients in their place, as torch.optim.Muon:
///   g' = clip * g;  m = momentum * m + (1 - momentum) * g'
///   g = nesterov ? momentum * m + (1 - momentum) * g' : m
void running_mean(const Tensor& g, const Tensor& m, const RunningMeanArgs& args, Stream& stream);

}  // namespace heddle::ops
