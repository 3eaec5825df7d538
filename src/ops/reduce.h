#pragma once

#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace heddle::ops {

/// Sum of squares of a contiguous f32 or f64 tensor, accumulated in double over fixed blocks, so
/// that the result does not depend on the number of threads.
double sum_of_squares(const Tensor& x, Stream& stream);

/// Index of the first element that is NaN or infinite in a contiguous f32, f64, bf16 or f16 tensor;
/// -1 if none.
std::int64_t first_non_finite(const Tensor& x, Stream& stream);

}  // namespace heddle::ops
