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
/// dtable[ids[t]] += dy[t], in the order of t whatever the number of threads. CUDA: dtable is f32.
void embedding_backward(const Tensor& ids_T, const Tensor& dy_TD, const Tensor& dtable_VD,
                        Stream& stream);

/// rows_T = ids - first where that is in [0, held), else kAbsentRow; i32, contiguous.
void held_rows(const Tensor& ids_T, std::int64_t first, std::int64_t held, const Tensor& rows_T,
               Stream& stream);

}  // namespace heddle::ops
