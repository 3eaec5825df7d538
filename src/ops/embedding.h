#pragma once

#include <cstdint>
#include <limits>

#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace heddle::ops {

/// The id of a row that another holder of the table has: reads as zeros, and takes no gradient.
inline constexpr std::int32_t kAbsentRow = std::numeric_limits<std::int32_t>::min();

/// y_TD = table[ids] (ids i32 in [0, V) or kAbsentRow, contiguous).
void embedding_forward(const Tensor& ids_T, const Tensor& table_VD, const Tensor& y_TD,
                       Stream& stream);
/// y_TD += table[ids].
void embedding_add(const Tensor& ids_T, const Tensor& table_VD, const Tensor& y_TD, Stream& stream);
/// dtable[ids[t]] += dy[t], in the order of t whatever the number of threads.
void embedding_backward(const Tensor& ids_T, const Tensor& dy_TD, const Tensor& dtable_VD,
                        Stream& stream);

}  // namespace heddle::ops
