#pragma once

#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace heddle::ops {

/// Targets with this value do not count.
inline constexpr std::int32_t kIgnoreTarget = -100;

/// loss_T = logsumexp(row) - row[target], 0 where the target is ignored. loss is f64 and
/// contiguous, logits f32 or f64 (CUDA: f32 or bf16) with possibly strided rows, targets i32 in [0,
/// V) or kIgnoreTarget.
void cross_entropy_forward(const Tensor& logits_TV, const Tensor& targets_T, const Tensor& loss_T,
                           Stream& stream);

/// The same, and overwrites the logits with their gradient, (softmax - onehot) * grad_scale; rows
/// whose target is ignored become 0.
void cross_entropy_forward_backward(const Tensor& logits_TV, const Tensor& targets_T,
                                    double grad_scale, const Tensor& loss_T, Stream& stream);

// The same in pieces, for a vocabulary whose columns [first, first + logits.size(1)) are here and
// whose others are elsewhere. Row statistics have the dtype of the logits (CUDA: f32); the caller
// combines them over the holders: maximum by maximum, sums and chosen by sum.

/// max_T = the largest of each row; of the first `valid` columns, the rest being padding.
void row_max(const Tensor& logits_TV, std::int64_t valid, const Tensor& max_T, Stream& stream);
/// Overwrites the logits with e^(logit - max) (padding with 0), sum_T with the sum of each row, and
/// chosen_T with the target's logit minus max, or 0 where the target is not among these columns.
void row_exponentials(const Tensor& logits_TV, std::int64_t valid, const Tensor& targets_T,
                      std::int64_t first, const Tensor& max_T, const Tensor& sum_T,
                      const Tensor& chosen_T, Stream& stream);
/// Overwrites these exponentials with (e / sum - onehot) * grad_scale; rows whose target is ignored
/// become 0.
void softmax_gradient(const Tensor& exponentials_TV, const Tensor& targets_T, std::int64_t first,
                      const Tensor& sum_T, double grad_scale, Stream& stream);
/// loss_T (f64) = log(sum) - chosen, 0 where the target is ignored.
void row_loss(const Tensor& sum_T, const Tensor& chosen_T, const Tensor& targets_T,
              const Tensor& loss_T, Stream& stream);

}  // namespace heddle::ops
