#pragma once

#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace heddle::ops {

/// y = x converted between f32, f64, bf16 and f16 (round to nearest even); equal shapes, both
/// contiguous.
void cast(const Tensor& x, const Tensor& y, Stream& stream);

}  // namespace heddle::ops
