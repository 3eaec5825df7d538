#pragma once

#include <cstdint>

#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace heddle::ops {

/// y[i] = stddev * random_normal(key, first_index + i) for a contiguous f32 or f64 tensor (CUDA:
/// also bf16): a slice of a larger tensor gets the values the whole would have there.
void fill_normal(const Tensor& y, std::uint64_t key, std::uint64_t first_index, double stddev,
                 Stream& stream);

/// What of a matrix is dropped: a function of the key, the row's number and the column alone, so
/// that slices of a larger matrix lose what the whole would.
struct DropoutMask {
  std::uint64_t key = 0;
  double rate = 0.0;            ///< the share that is dropped, below 1
  std::uint64_t first_row = 0;  ///< the number of the first row, which the others follow,
  Tensor rows_T = {};           ///< or i64, beside the values: the number of each row
  std::int64_t first_column = 0, columns = 0;  ///< where in whole rows, which have so many
};

/// y = x / (1 - rate), and 0 where the mask drops it: where word i % 2 of philox(key, i / 2), of
/// element i = row * columns + column, is less than rate * 2^32. f32 and f64 (CUDA: f32 and bf16).
void dropout(const Tensor& x_TI, const DropoutMask& mask, const Tensor& y_TI, Stream& stream);
/// y += what dropout gives.
void add_dropout(const Tensor& x_TI, const DropoutMask& mask, const Tensor& y_TI, Stream& stream);

}  // namespace heddle::ops
