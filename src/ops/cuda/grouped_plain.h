#pragma once

#include "ops/cuda/stream_state.h"
#include "ops/gemm.h"
#include "tensor/tensor.h"

namespace heddle::ops::cuda {

// Products of experts' rows in f32 arithmetic, for any type and layout, on any GPU: where those on
// tensor cores do not fit. As ops/experts.h has them; neither c nor its experts are none. The
// gradient of matrices is that of a part of the rows.

void grouped_gemm_plain(const Tensor& a_RK, const Tensor& b_EXX, Transpose transpose_b,
                        const Tensor& offsets_E1, const Tensor& c_RN, const StreamState& state);
void grouped_gemm_weight_plain(const Tensor& a_PM, const Tensor& b_PN, const Tensor& offsets_E1,
                               std::int64_t first, double beta, const Tensor& c_EMN,
                               const StreamState& state);

}  // namespace heddle::ops::cuda
