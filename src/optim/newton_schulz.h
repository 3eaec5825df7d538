#pragma once

#include "tensor/memory.h"
#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace heddle {

/// About the nearest matrix with orthogonal rows or columns: all singular values are brought near 1
/// by steps of the quintic iteration of Jordan et al. (Muon, 2024), with their coefficients, as
/// torch.optim.Muon does. `matrix` [A, B], f32 or f64, contiguous, is used up; products are made in
/// `dtype`, which the result has too.
Tensor newton_schulz(const Tensor& matrix, int steps, DType dtype, Memory& memory, Stream& stream);

}  // namespace heddle
