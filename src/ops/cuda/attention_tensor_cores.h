#pragma once

#include "ops/cuda/attention_problem.h"

namespace heddle::ops::cuda {

// Attention of bf16 on tensor cores, for any mask, of whole sequences or, with a `block`, of one.
// Both return false, having done nothing, where scores have a cap, heads are wider than 128, or
// rows are no multiples of 16 bytes or do not start at one.

bool tensor_core_attention_forward(const Problem& problem, const Tensor& q_BSHK,
                                   const Tensor& k_BTGK, const Tensor& v_BTGK,
                                   std::optional<KeyBlock> block, const Tensor& out_BSHK,
                                   const Tensor& lse_BHS, Stream& stream);

/// The order of sums is fixed.
bool tensor_core_attention_backward(const Problem& problem, const BackwardCall& call,
                                    Stream& stream);

}  // namespace heddle::ops::cuda
