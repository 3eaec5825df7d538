#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/comm_backend.h"

namespace heddle {

/// Combines elements [begin, end) of the inputs, in the order given, and writes the result to the
/// same elements of every output, which may be inputs too. An element's result does not depend on
/// the range. The 16-bit floats are combined in f32 and rounded once. Error(internal) for dtypes
/// without arithmetic.
void combine_ranks(DType dtype, ReduceOp op, std::span<std::byte* const> inputs,
                   std::span<std::byte* const> outputs, std::int64_t begin, std::int64_t end);

}  // namespace heddle
