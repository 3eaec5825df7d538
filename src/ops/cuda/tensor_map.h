#pragma once

#include <cuda.h>

#include <initializer_list>

#include "tensor/tensor.h"

namespace heddle::ops::cuda {

/// Boxes of a tensor for Hopper's copies (hopper_instructions.h), in shared memory with a swizzle
/// of 128 bytes. The tensor has at most four dimensions, bf16 or f32, and is_aligned(); `box` gives
/// a size for each of them, in the tensor's order, the last at most 128 bytes and all at most 256.
/// What lies outside the tensor is read as 0 and not written. The map has four dimensions; those
/// that the tensor lacks come first and are 1.
CUtensorMap tensor_map(const Tensor& t, std::initializer_list<int> box);

}  // namespace heddle::ops::cuda
