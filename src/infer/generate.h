#pragma once

#include <functional>
#include <span>
#include <vector>

#include "engine/model.h"
#include "infer/sampling.h"

namespace heddle {

struct GenerateOptions {
  std::int64_t max_tokens = 128;
  SamplingOptions sampling = {};
  std::vector<std::int32_t> end_tokens = {};  ///< generation stops behind any of these
  bool uses_cache = true;  ///< false recomputes the whole sequence for every token (for tests)
};

/// Called with every new token; returns false to stop.
using OnToken = std::function<bool(std::int32_t)>;

/// Continues the prompt and returns the new tokens. The prompt must not be empty, and prompt and
/// continuation must fit the model's longest sequence: generation ends there.
std::vector<std::int32_t> generate(const Model& model, std::span<const std::int32_t> prompt,
                                   const GenerateOptions& options, const OnToken& on_token,
                                   Stream& stream, Memory& memory);

}  // namespace heddle
