#pragma once

#include "ops/cuda/attention_problem.h"

namespace heddle::ops::cuda {

// Tiles of queries against tiles of keys in shared memory, in f32 arithmetic, for any mask, width
// and stride. A gradient is summed by one block in a fixed order; nothing is added atomically.

void plain_attention_forward(const Problem& problem, const Tensor& q_BSHK, const Tensor& k_BTGK,
                             const Tensor& v_BTGK, std::optional<KeyBlock> block,
                             const Tensor& out_BSHK, const Tensor& lse_BHS, Stream& stream);

/// delta is given: attention_delta() makes it.
void plain_attention_backward(const Problem& problem, const BackwardCall& call, Stream& stream);

}  // namespace heddle::ops::cuda
