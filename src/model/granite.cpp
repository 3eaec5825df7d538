#include <fmt/core.h>

#include "model/families.h"

namespace heddle {

// Granite is Llama's block with factors: of the embedding, of scores, of what branches add, and of
// the logits.
ModelSpec granite_spec(const ConfigReader& config) {
  ModelSpec spec = llama_spec(config);
  const auto factor = [&](const char* key) {
    const double value = config.number_or(key, 1.0);
    if (value <= 0.0) config.refuse(fmt::format("{} = {} is not positive", key, value));
    return value;
  };
  spec.embedding_scale = factor("embedding_multiplier");
  spec.attention_scale = factor("attention_multiplier");
  spec.residual_scale = factor("residual_multiplier");
  spec.logits_scale = 1.0 / factor("logits_scaling");
  return spec;
}

}  // namespace heddle
