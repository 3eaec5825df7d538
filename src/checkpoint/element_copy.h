#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/dtype.h"
#include "tensor/tensor.h"

namespace heddle {

/// True when elements can be copied from one dtype into the other: equal ones, and any two floats.
bool can_convert(DType from, DType to);

/// Copies `count` elements from bytes of any alignment, converting between floats as ops::cast
/// does.
void convert_elements(const std::byte* from, DType from_dtype, std::byte* to, DType to_dtype,
                      std::int64_t count);

/// Copies the box that starts at `from_begin` of a row-major array of shape `from_shape` to the box
/// of shape `extent` that starts at `to_begin` of `to`, which may be strided and lies in host
/// memory. Reads no other bytes of the source.
void copy_box(const std::byte* from, DType from_dtype, const Shape& from_shape,
              std::span<const std::int64_t> from_begin, const Tensor& to,
              std::span<const std::int64_t> to_begin, std::span<const std::int64_t> extent);

}  // namespace heddle
