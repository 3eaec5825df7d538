#pragma once

#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace heddle::ops {

/// Rotates, in place, the first 2R elements of every head of x_BSHK (rotate-half form: element i
/// pairs with i + R) by the angle whose cosine and sine stand in row positions_BS of cos_PR and
/// sin_PR; the elements from 2R on are left alone. x may be strided in all but the last dimension.
/// positions are i32; the tables have the dtype of x (CUDA: f32, x also bf16). `inverse` rotates
/// back, which is the backward of the rotation.
void rope(const Tensor& x_BSHK, const Tensor& positions_BS, const Tensor& cos_PR,
          const Tensor& sin_PR, bool inverse, Stream& stream);

}  // namespace heddle::ops
