#pragma once

#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace heddle::ops {

/// Which elements of the first 2R of a head are a pair: i and i + R, or 2i and 2i + 1.
enum class RopePairs { halves, neighbours };

/// Rotates, in place, the pairs of the first 2R elements of every head of x_BSHK by the angle whose
/// cosine and sine stand in row positions_BS of cos_PR and sin_PR, times a factor where both have
/// it; the elements from 2R on are left alone. x may be strided in all but the last dimension.
/// positions are i32; the tables have the dtype of x (CUDA: f32, x also bf16). `inverse` is by the
/// negative angle, times the same factor: the backward of the rotation.
void rope(const Tensor& x_BSHK, const Tensor& positions_BS, const Tensor& cos_PR,
          const Tensor& sin_PR, RopePairs pairs, bool inverse, Stream& stream);

}  // namespace heddle::ops
