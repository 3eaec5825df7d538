#pragma once

#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace heddle::ops::cuda {

/// Sums over the rows of dy, [..., D]: db += dy and dw += dy * (x - mean) * rstd, in an order that
/// depends only on the shape. Absent tensors are left out: without dw, x is not read; without
/// mean, it counts as 0. dw and db are f32.
struct ColumnSums {
  const Tensor& dy;
  Tensor x = {}, mean = {}, rstd = {};
  Tensor dw_D = {}, db_D = {};
};
void add_column_sums(const ColumnSums& sums, Stream& stream);

/// Adds up partial[which][row][D] over the `rows` rows, in a fixed order: dw_D += for which = 0,
/// db_D += for which = 1. Either may be absent; both are f32.
void add_partial_rows(const float* partial, std::int64_t rows, const Tensor& dw_D,
                      const Tensor& db_D, Stream& stream);

}  // namespace heddle::ops::cuda
