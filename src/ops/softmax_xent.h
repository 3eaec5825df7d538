#pragma once

#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace heddle::ops {

/// Targets with this value do not count.
inline constexpr std::int32_t kIgnoreTarget = -100;

/// loss_T = logsumexp(row) - row[target], 0 where the target is ignored. loss is f64 and
/// contiguous, logits f32 or f64 with possibly strided rows, targets i32 in [0, V) or
/// kIgnoreTarget.
void cross_entropy_forward(const Tensor& logits_TV, const Tensor& targets_T, const Tensor& loss_T,
                           Stream& stream);

/// The same, and overwrites the logits with their gradient, (softmax - onehot) * grad_scale; rows
/// whose target is ignored become 0.
void cross_entropy_forward_backward(const Tensor& logits_TV, const Tensor& targets_T,
                                    double grad_scale, const Tensor& loss_T, Stream& stream);

}  // namespace heddle::ops
