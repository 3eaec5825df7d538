#include "model/families.h"

namespace heddle {

// OLMo 2 is Llama's block with norms behind the branches in place of those before them, and with
// norms of q and k over all of their heads together.
ModelSpec olmo2_spec(const ConfigReader& config) {
  ModelSpec spec = llama_spec(config);
  spec.qk_norm = spec.qk_norm_joins_heads = true;
  spec.names.query_norm = "model.layers.{}.self_attn.q_norm";
  spec.names.key_norm = "model.layers.{}.self_attn.k_norm";
  spec.names.attention_norm = spec.names.mlp_norm = {};
  spec.names.attention_post_norm = "model.layers.{}.post_attention_layernorm";
  spec.names.mlp_post_norm = "model.layers.{}.post_feedforward_layernorm";
  return spec;
}

}  // namespace heddle
