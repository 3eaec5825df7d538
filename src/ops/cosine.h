#pragma once

#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace heddle::ops {

// Logits that are cosines of angles, as X-MoE and Tutel route by them. All of one float dtype,
// contiguous; CPU only.

/// What a logit is at most: beyond it the temperature has no gradient.
inline constexpr double kMostTemperature = 100.0;

/// logits[t, e] = min(2 exp(warmth), kMostTemperature) * cos(u_t, v_e); `warmth` has one element.
/// A row of zeros has an angle to nothing, and cosines of 0.
void cosine_logits(const Tensor& u_TP, const Tensor& v_EP, const Tensor& warmth,
                   const Tensor& logits_TE, Stream& stream);
void cosine_logits_backward_input(const Tensor& dlogits_TE, const Tensor& u_TP, const Tensor& v_EP,
                                  const Tensor& warmth, const Tensor& du_TP, Stream& stream);
/// dv and dwarmth += their gradients.
void cosine_logits_backward_weight(const Tensor& dlogits_TE, const Tensor& u_TP, const Tensor& v_EP,
                                   const Tensor& warmth, const Tensor& dv_EP, const Tensor& dwarmth,
                                   Stream& stream);

}  // namespace heddle::ops
