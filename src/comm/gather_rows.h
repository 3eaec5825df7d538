#pragma once

#include <span>

#include "comm/communicator.h"
#include "tensor/memory.h"

namespace heddle {

/// An all-gather of different numbers of rows, which all ranks know: an all-to-all in which every
/// rank gives its rows to all others. Returns the rows of all, in the order of ranks.
Tensor gather_rows(const Tensor& own, std::span<const std::int64_t> rows_by_rank,
                   Communicator& comm, Memory& memory, Stream& stream);

}  // namespace heddle
