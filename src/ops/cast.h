#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace heddle::ops {

/// y = x converted between f32, f64, bf16 and f16 (round to nearest even); equal shapes, both
/// contiguous.
void cast(const Tensor& x, const Tensor& y, Stream& stream);

/// The same for `count` elements in host memory, on the calling thread. `from` and `to` may have
/// any alignment, as in a mapped file, and do not overlap.
void cast_bytes(const std::byte* from, DType from_dtype, std::byte* to, DType to_dtype,
                std::int64_t count);

}  // namespace heddle::ops
