#include "model/families.h"

namespace heddle {

// GLM-4 is Llama's block with neighbours of half a head rotated, biases of q, k and v, and gate and
// up in one tensor; glm4 (GLM-4-0414) has norms behind its branches too.
ModelSpec glm_spec(const ConfigReader& config) {
  ModelSpec spec = llama_spec(config);
  spec.attention_out_bias = false;
  spec.names.gate = spec.names.up = {};
  spec.names.fused_gate_up = "model.layers.{}.mlp.gate_up_proj";
  if (config.text_or("model_type", "") == "glm4") {
    spec.names.attention_post_norm = "model.layers.{}.post_self_attn_layernorm";
    spec.names.mlp_post_norm = "model.layers.{}.post_mlp_layernorm";
  }
  return spec;
}

}  // namespace heddle
