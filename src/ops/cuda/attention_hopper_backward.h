#pragma once

#include "ops/cuda/attention_problem.h"

namespace heddle::ops::cuda {

/// Gradients of attention of bf16 on Hopper, of whole sequences or of a block, with heads 64 or 128
/// wide. What is added to a row of dq comes in any order; on a deterministic stream its sums are
/// exact, so that they are the same bits every time. Returns false, having done nothing, where
/// device, heads, or rows (multiples of 16 bytes) are others, and on a deterministic stream with a
/// cap or queries that jump.
bool hopper_attention_backward(const Problem& problem, const BackwardCall& call, Stream& stream);

// The same of a block whose dq stays as sums (ops/query_sums.h).

/// Of queries [B, S, H, K]; 0 where it refuses them, and on a deterministic stream.
std::int64_t hopper_query_sum_tile(const Tensor& q_BSHK, Stream& stream);
/// `call` has the sums in place of dq. Returns false as above, and on a deterministic stream.
bool hopper_attention_backward_to_sums(const Problem& problem, const BackwardCall& call,
                                       Stream& stream);
void hopper_query_grads(const Tensor& sums_BHNX, double scale, bool adds, const Tensor& dq_BSHK,
                        Stream& stream);

}  // namespace heddle::ops::cuda
