#pragma once

#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace heddle::ops {

/// y_TD = table[ids] (ids i32 in [0, V), contiguous).
void embedding_forward(const Tensor& ids_T, const Tensor& table_VD, const Tensor& y_TD,
                       Stream& stream);
/// y_TD += table[ids].
void embedding_add(const Tensor& ids_T, const Tensor& table_VD, const Tensor& y_TD, Stream& stream);
/// dtable[ids[t]] += dy[t], in the order of t whatever the number of threads.
void embedding_backward(const Tensor& ids_T, const Tensor& dy_TD, const Tensor& dtable_VD,
                        Stream& stream);

}  // namespace heddle::ops
