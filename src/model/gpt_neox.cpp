#include <fmt/core.h>

#include <cmath>

#include "model/families.h"
#include "model/gelu_config.h"
#include "model/rope_config.h"

namespace heddle {

ModelSpec gpt_neox_spec(const ConfigReader& config) {
  ModelSpec spec;
  spec.vocab = config.size("vocab_size");
  spec.hidden = config.size("hidden_size");
  spec.layers = config.size("num_hidden_layers");
  spec.heads = spec.kv_heads = config.size("num_attention_heads");
  spec.head_dim = spec.hidden / spec.heads;
  if (spec.head_dim * spec.heads != spec.hidden) {
    config.refuse(fmt::format("num_attention_heads = {} does not divide hidden_size = {}",
                              spec.heads, spec.hidden));
  }
  // transformers takes it for the angles, and not for the heads.
  if (config.has("head_dim") && config.size("head_dim") != spec.head_dim) {
    config.refuse(fmt::format("head_dim = {}, but the heads of gpt_neox share hidden_size = {}",
                              config.size("head_dim"), spec.hidden),
                  "remove it");
  }
  spec.ffn = config.size("intermediate_size");
  spec.max_positions = config.size_or("max_position_embeddings", 2048);
  spec.norm = ModelSpec::Norm::layer;
  spec.norm_eps = config.number_or("layer_norm_eps", 1e-5);
  spec.mlp = ModelSpec::Mlp::gelu;
  spec.gelu = read_gelu(config, "hidden_act", "gelu");
  spec.rope = read_rope(config, {.head_dim = spec.head_dim,
                                 .max_positions = spec.max_positions,
                                 .theta = "rotary_emb_base",
                                 .rotated = "rotary_pct",
                                 .rotated_by_default = 0.25});
  spec.qkv_bias = spec.attention_out_bias = config.flag_or("attention_bias", true);
  spec.mlp_bias = true;
  spec.qkv_interleaved = true;
  spec.blocks[0].is_parallel = config.flag_or("use_parallel_residual", true);
  spec.tied_embeddings = config.flag_or("tie_word_embeddings", false);
  spec.attention_scale = 1.0 / std::sqrt(static_cast<double>(spec.head_dim));
  spec.init_stddev = config.number_or("initializer_range", 0.02);
  spec.dropout = config.dropout_asked({"attention_dropout", "hidden_dropout"});
  spec.names = {
      .token_embedding = "gpt_neox.embed_in",
      .position_embedding = {},
      .attention_norm = "gpt_neox.layers.{}.input_layernorm",
      .attention_post_norm = {},
      .mlp_norm = "gpt_neox.layers.{}.post_attention_layernorm",
      .mlp_post_norm = {},
      .query = {},
      .key = {},
      .value = {},
      .attention_out = "gpt_neox.layers.{}.attention.dense",
      .fused_qkv = "gpt_neox.layers.{}.attention.query_key_value",
      .query_norm = {},
      .key_norm = {},
      .gate = {},
      .up = "gpt_neox.layers.{}.mlp.dense_h_to_4h",
      .down = "gpt_neox.layers.{}.mlp.dense_4h_to_h",
      .fused_gate_up = {},
      .final_norm = "gpt_neox.final_layer_norm",
      .head = "embed_out",
  };
  return spec;
}

}  // namespace heddle
