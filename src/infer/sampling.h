#pragma once

#include <cstdint>
#include <span>

namespace heddle {

struct SamplingOptions {
  double temperature = 0.0;  ///< 0 takes the most likely token
  std::int64_t top_k = 0;    ///< keep the k most likely; 0 keeps all
  double top_p = 1.0;        ///< keep the most likely tokens that together reach this probability
  std::uint64_t seed = 0;
};

/// The next token. A pure function: `index` (which token of the sequence this is) selects the
/// random number. Ties go to the lower id.
std::int32_t sample_token(std::span<const float> logits, const SamplingOptions& options,
                          std::uint64_t index);

}  // namespace heddle
