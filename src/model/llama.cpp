#include <fmt/core.h>

#include <cmath>

#include "base/json.h"
#include "model/families.h"

namespace heddle {

ModelSpec llama_spec(const ConfigReader& config) {
  ModelSpec spec;
  spec.vocab = config.size("vocab_size");
  spec.hidden = config.size("hidden_size");
  spec.layers = config.size("num_hidden_layers");
  spec.heads = config.size("num_attention_heads");
  spec.kv_heads = config.size_or("num_key_value_heads", spec.heads);
  spec.head_dim = config.size_or("head_dim", spec.hidden / spec.heads);
  if (!config.has("head_dim") && spec.head_dim * spec.heads != spec.hidden) {
    config.refuse(fmt::format("num_attention_heads = {} does not divide hidden_size = {}",
                              spec.heads, spec.hidden),
                  "give head_dim where heads have a size of their own");
  }
  spec.ffn = config.size("intermediate_size");
  spec.max_positions = config.size_or("max_position_embeddings", 2048);
  spec.norm_eps = config.number_or("rms_norm_eps", 1e-6);
  spec.rope = config.rope(spec.head_dim);
  spec.qkv_bias = spec.attention_out_bias = config.flag_or("attention_bias", false);
  spec.mlp_bias = config.flag_or("mlp_bias", false);
  spec.tied_embeddings = config.flag_or("tie_word_embeddings", false);
  spec.attention_scale = 1.0 / std::sqrt(static_cast<double>(spec.head_dim));
  spec.init_stddev = config.number_or("initializer_range", 0.02);
  config.require_value("hidden_act", "silu");
  spec.dropout = config.dropout_asked({"attention_dropout"});
  config.refuse_sliding_window();
  spec.names = {
      .token_embedding = "model.embed_tokens",
      .position_embedding = {},
      .attention_norm = "model.layers.{}.input_layernorm",
      .query = "model.layers.{}.self_attn.q_proj",
      .key = "model.layers.{}.self_attn.k_proj",
      .value = "model.layers.{}.self_attn.v_proj",
      .attention_out = "model.layers.{}.self_attn.o_proj",
      .fused_qkv = {},
      .query_norm = {},
      .key_norm = {},
      .mlp_norm = "model.layers.{}.post_attention_layernorm",
      .gate = "model.layers.{}.mlp.gate_proj",
      .up = "model.layers.{}.mlp.up_proj",
      .down = "model.layers.{}.mlp.down_proj",
      .final_norm = "model.norm",
      .head = "lm_head",
  };
  return spec;
}

}  // namespace heddle
