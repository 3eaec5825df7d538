#include "model/families.h"

namespace heddle {

// Qwen is Llama's block with biases on q, k, v (qwen2) or with norms on q and k of each head
// (qwen3).
ModelSpec qwen_spec(const ConfigReader& config) {
  ModelSpec spec = llama_spec(config);
  if (config.text_or("model_type", "") == "qwen2") {
    spec.qkv_bias = true;
    spec.attention_out_bias = false;
  } else {
    spec.qk_norm = true;
    spec.names.query_norm = "model.layers.{}.self_attn.q_norm";
    spec.names.key_norm = "model.layers.{}.self_attn.k_norm";
  }
  return spec;
}

}  // namespace heddle
