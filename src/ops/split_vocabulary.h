#pragma once

#include <cstdint>

#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace heddle::ops {

// For an output layer whose vocabulary is divided over several holders, N of them with
// `rows_per_holder` rows each: what they tell each other about a row of logits is its statistics,
// [3, T]: the maximum of those here, the sum of their exponentials below it, and the target's logit
// below it (see row_exponentials). f32 or f64; CUDA: statistics and divisors f32, y f32 or bf16.

/// From the statistics of all holders: divisor_T, by which holder `own` divides its exponentials to
/// get probabilities (infinite where the target is ignored), and loss_T (f64, 0 where ignored).
void merge_row_statistics(const Tensor& statistics_N3T, const Tensor& targets_T,
                          std::int64_t rows_per_holder, std::int64_t own, const Tensor& divisor_T,
                          const Tensor& loss_T, Stream& stream);

/// Divides row t of y_TD by divisor_T[t].
void divide_rows(const Tensor& y_TD, const Tensor& divisor_T, Stream& stream);

}  // namespace heddle::ops
