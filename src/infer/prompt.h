#pragma once

#include <cstdint>
#include <span>

#include "engine/model.h"

namespace heddle {

/// Throws Error where the model cannot continue the prompt: it is empty or too long, or has ids
/// that the model does not know.
void check_prompt(std::span<const std::int32_t> prompt, const ModelSpec& spec);

/// A batch of one sequence, whose first token stands at `first_position`.
MicroBatch one_sequence(std::span<const std::int32_t> ids, std::int64_t first_position,
                        Memory& memory);

}  // namespace heddle
