#pragma once

#include <cstdint>

#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace heddle::ops {

/// y[i] = stddev * random_normal(key, first_index + i) for a contiguous f32 or f64 tensor (CUDA:
/// also bf16): a slice of a larger tensor gets the values the whole would have there.
void fill_normal(const Tensor& y, std::uint64_t key, std::uint64_t first_index, double stddev,
                 Stream& stream);

}  // namespace heddle::ops
