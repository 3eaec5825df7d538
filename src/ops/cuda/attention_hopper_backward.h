#pragma once

#include "ops/cuda/attention_problem.h"

namespace heddle::ops::cuda {

/// Gradients of attention of bf16 on Hopper, of whole sequences with heads 64 wide or of a block
/// with heads 64 or 128 wide. What is added to a row of dq comes in any order. Returns false,
/// having done nothing, on a deterministic stream and where device, heads, or rows (multiples of 16
/// bytes) are others.
bool hopper_attention_backward(const Problem& problem, const BackwardCall& call, Stream& stream);

// The same of a block whose dq stays as sums (ops/query_sums.h).

/// Of queries [B, S, H, K]; 0 where it refuses them.
std::int64_t hopper_query_sum_tile(const Tensor& q_BSHK, Stream& stream);
/// `call` has the sums in place of dq. Returns false as above.
bool hopper_attention_backward_to_sums(const Problem& problem, const BackwardCall& call,
                                       Stream& stream);
void hopper_query_grads(const Tensor& sums_BHNX, double scale, bool adds, const Tensor& dq_BSHK,
                        Stream& stream);

}  // namespace heddle::ops::cuda
