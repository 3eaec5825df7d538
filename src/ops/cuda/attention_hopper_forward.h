#pragma once

#include "ops/cuda/attention_problem.h"

namespace heddle::ops::cuda {

/// Attention of bf16 by Hopper's products of warpgroups, for any mask; the order of sums is fixed.
/// Returns false, having done nothing, where the card is no Hopper, heads are not 64 or 128 wide,
/// there are fewer than 64 queries or no keys, queries jump elsewhere than at a multiple of 64, or
/// rows are no multiples of 16 bytes or do not start at one.
bool hopper_attention_forward(const Problem& problem, const Tensor& q_BSHK, const Tensor& k_BTGK,
                              const Tensor& v_BTGK, std::optional<KeyBlock> block,
                              const Tensor& out_BSHK, const Tensor& lse_BHS, Stream& stream);

}  // namespace heddle::ops::cuda
