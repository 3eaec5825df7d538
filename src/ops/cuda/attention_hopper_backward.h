#pragma once

#include "ops/cuda/attention_problem.h"

namespace heddle::ops::cuda {

/// Gradients of attention of bf16 on Hopper, of whole sequences with heads 64 wide or of a block
/// with heads 64 or 128 wide. What is added to a row of dq comes in any order. Returns false,
/// having done nothing, on a deterministic stream and where device, heads, or rows (multiples of 16
/// bytes) are others.
bool hopper_attention_backward(const Problem& problem, const BackwardCall& call, Stream& stream);

}  // namespace heddle::ops::cuda
