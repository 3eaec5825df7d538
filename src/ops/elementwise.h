#pragma once

#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace heddle::ops {

// f32 or f64 (CUDA: f32 or bf16). Tensors of one call have equal shapes and dtypes; up to four
// dimensions, strided in all but the last.

/// Also of i32.
void fill(const Tensor& y, double value, Stream& stream);
/// Of any dtype. On a CUDA stream either side may be in host memory; a copy to the host is complete
/// when the call returns, one from the host when the stream comes to it (host memory may be reused
/// at once).
void copy(const Tensor& x, const Tensor& y, Stream& stream);
/// y = a + b; y may be a or b.
void add(const Tensor& a, const Tensor& b, const Tensor& y, Stream& stream);
/// y += x.
void accumulate(const Tensor& x, const Tensor& y, Stream& stream);
/// y *= factor.
void scale(const Tensor& y, double factor, Stream& stream);

/// y_TN += b_N for every row.
void add_bias(const Tensor& y_TN, const Tensor& b_N, Stream& stream);
/// db_N += sum of the rows of dy_TN, in an order that does not depend on the number of threads.
/// CUDA: db is f32.
void bias_backward(const Tensor& dy_TN, const Tensor& db_N, Stream& stream);

}  // namespace heddle::ops
