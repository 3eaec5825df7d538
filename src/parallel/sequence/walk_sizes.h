#pragma once

#include <array>

#include "parallel/sequence/context_program.h"
#include "tensor/dtype.h"

namespace heddle {

// What a ContextWalk will send and take, without walking.

/// Bytes of a message in activations of `dtype`, by buffer: statistics of 16-bit rows have one of
/// their own, otherwise there is nothing in the second.
std::array<std::int64_t, 2> buffer_bytes(const Message& message, const ContextShape& shape,
                                         DType dtype);

/// The most that a walk holds at a time beside the rank's own pieces: messages and what it makes of
/// them.
std::int64_t workspace_bytes(const ContextProgram& program, const ContextShape& shape, DType dtype);

}  // namespace heddle
