#pragma once

#include <string>

#include "base/json.h"
#include "model/registry.h"

namespace heddle {

/// The smallest config.json of a family that is accepted.
inline Json small_config(const std::string& family) {
  if (family == "gpt2") {
    return {
        {"model_type", family}, {"vocab_size", 50}, {"n_embd", 24}, {"n_layer", 2}, {"n_head", 3}};
  }
  Json config = {{"model_type", family},   {"vocab_size", 50},         {"hidden_size", 24},
                 {"num_hidden_layers", 2}, {"num_attention_heads", 3}, {"intermediate_size", 40},
                 {"rope_theta", 10000.0}};
  // Where these are missing, many families have those of their large models.
  for (const char* large : {"mi", "qwen", "glm", "gemma", "smollm3", "starcoder2"}) {
    if (family.starts_with(large)) config["num_key_value_heads"] = 3;
  }
  if (family == "qwen3" || family.starts_with("g")) config["head_dim"] = 8;
  if (family == "heddle_moe" || family == "mixtral" || family == "olmoe" || family == "qwen3_moe") {
    config.update({{"num_experts", 6}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 10}});
  }
  return config;
}

inline ModelSpec spec_of(const Json& config) { return model_spec(config, "dir/config.json"); }

/// The config with these keys replaced; null removes one.
inline Json with(Json config, const Json& changes) {
  for (const auto& [key, value] : changes.items()) {
    if (value.is_null()) {
      config.erase(key);
    } else {
      config[key] = value;
    }
  }
  return config;
}

}  // namespace heddle
