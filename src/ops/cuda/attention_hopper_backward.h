#pragma once

#include "ops/cuda/attention_problem.h"

namespace heddle::ops::cuda {

/// Gradients of attention of bf16 with heads 64 wide and query_offset 0, on Hopper. What is added
/// to a row of dq comes in any order. Returns false, having done nothing, on a deterministic stream
/// and where device, heads, or rows (multiples of 16 bytes) are others.
bool hopper_attention_backward(const Problem& problem, const Tensor& dout_BSHK,
                               const Tensor& q_BSHK, const Tensor& k_BSGK, const Tensor& v_BSGK,
                               const Tensor& out_BSHK, const Tensor& lse_BHS, const Tensor& dq_BSHK,
                               const Tensor& dk_BSGK, const Tensor& dv_BSGK, Stream& stream);

}  // namespace heddle::ops::cuda
