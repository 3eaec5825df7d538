#pragma once

#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace heddle::ops {

// Normalisation over the last dimension D. x, y, dy, dx are [..., D] with up to four dimensions and
// may be strided (q and k inside a fused projection); `rows` is the product of the leading sizes.
// Statistics are [rows], contiguous, of the same dtype. f32 or f64. y may be x, and dx may be dy.
// CUDA: x, w and b f32 or bf16; statistics, dw and db f32.

/// y = x * rstd * w, rstd = 1 / sqrt(mean(x^2) + eps).
void rms_norm_forward(const Tensor& x, const Tensor& w_D, double eps, const Tensor& y,
                      const Tensor& rstd, Stream& stream);
/// dx for y = x * rstd * w.
void rms_norm_backward_input(const Tensor& dy, const Tensor& x, const Tensor& w_D,
                             const Tensor& rstd, const Tensor& dx, Stream& stream);
/// dw += sum over rows of dy * x * rstd. The order of the sum does not depend on the number of
/// threads.
void rms_norm_backward_weight(const Tensor& dy, const Tensor& x, const Tensor& rstd,
                              const Tensor& dw_D, Stream& stream);

/// Both at once, and dx + addend where there is one (the gradient that went around the norm; [..,
/// D], not dx).
void rms_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& w_D, const Tensor& rstd,
                       const Tensor& addend, const Tensor& dx, const Tensor& dw_D, Stream& stream);

/// y = (x - mean) * rstd * w + b, with the biased variance and eps inside the root.
void layer_norm_forward(const Tensor& x, const Tensor& w_D, const Tensor& b_D, double eps,
                        const Tensor& y, const Tensor& mean, const Tensor& rstd, Stream& stream);
void layer_norm_backward_input(const Tensor& dy, const Tensor& x, const Tensor& w_D,
                               const Tensor& mean, const Tensor& rstd, const Tensor& dx,
                               Stream& stream);
/// dw += ..., db += ... as above.
void layer_norm_backward_weight(const Tensor& dy, const Tensor& x, const Tensor& mean,
                                const Tensor& rstd, const Tensor& dw_D, const Tensor& db_D,
                                Stream& stream);
void layer_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& w_D, const Tensor& mean,
                         const Tensor& rstd, const Tensor& addend, const Tensor& dx,
                         const Tensor& dw_D, const Tensor& db_D, Stream& stream);

}  // namespace heddle::ops
