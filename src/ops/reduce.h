#pragma once

#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace heddle::ops {

/// Sum of squares of a contiguous f32 or f64 tensor, accumulated in double over fixed blocks, so
/// that the result does not depend on the number of threads.
double sum_of_squares(const Tensor& x, Stream& stream);

/// sum (f64, one element, on the device of x) += the sum of squares of x.
void add_sum_of_squares(const Tensor& x, const Tensor& sum, Stream& stream);

/// factor (f32, one element) = what gradients whose sum of squares is sums[0] (f64) are multiplied
/// by so that their norm is at most `limit` (0: no limit); NaN where any of the sums is not finite.
/// As torch.nn.utils.clip_grad_norm_: min(1, limit / (norm + 1e-6)).
void clip_factor(const Tensor& sums, double limit, const Tensor& factor, Stream& stream);

/// x /= max(sqrt(sum), least), where sum (f64, one element) lies beside the contiguous x, f32 or
/// f64 (CUDA: f32).
void divide_by_norm(const Tensor& x, const Tensor& sum, double least, Stream& stream);

/// sum (f64, one element) += the sum of a contiguous f32 or f64 tensor, in double and in a fixed
/// order.
void add_sum(const Tensor& x, const Tensor& sum, Stream& stream);

/// Index of the first element that is NaN or infinite in a contiguous f32, f64, bf16 or f16 tensor;
/// -1 if none.
std::int64_t first_non_finite(const Tensor& x, Stream& stream);

/// mark (f64, one element, on the device of x) = NaN where first_non_finite finds one, else it
/// stays as it is. The host waits for nothing.
void mark_non_finite(const Tensor& x, const Tensor& mark, Stream& stream);

}  // namespace heddle::ops
