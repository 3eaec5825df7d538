#include <fmt/core.h>

#include <cmath>

#include "base/json.h"
#include "model/attention_window.h"
#include "model/families.h"
#include "model/rope_config.h"

namespace heddle {
namespace {

/// What transformers takes where a config does not say.
struct Defaults {
  std::int64_t kv_heads = 0;  ///< 0: as many as heads
  std::int64_t head_dim = 0;  ///< 0: the heads share the hidden dimensions
  std::int64_t max_positions = 0;
  double norm_eps = 1e-6;
  double rope_theta = 10000.0;
};

Defaults defaults_of(const std::string& family) {
  if (family == "mistral") return {.kv_heads = 8, .max_positions = 131'072};
  if (family == "mixtral") {
    return {.kv_heads = 8, .max_positions = 131'072, .norm_eps = 1e-5, .rope_theta = 1e6};
  }
  if (family == "olmoe") return {.max_positions = 4096, .norm_eps = 1e-5};
  if (family == "qwen3_moe") return {.kv_heads = 4, .max_positions = 32'768};
  if (family == "qwen2") return {.kv_heads = 32, .max_positions = 32'768};
  if (family == "qwen3") return {.kv_heads = 32, .head_dim = 128, .max_positions = 32'768};
  return {.max_positions = 2048};
}

}  // namespace

ModelSpec llama_spec(const ConfigReader& config) {
  ModelSpec spec;
  const std::string family = config.text_or("model_type", "llama");
  const Defaults defaults = defaults_of(family);
  spec.vocab = config.size("vocab_size");
  spec.hidden = config.size("hidden_size");
  spec.layers = config.size("num_hidden_layers");
  spec.heads = config.size("num_attention_heads");
  const bool has_kv_heads = config.mentions("num_key_value_heads") || defaults.kv_heads == 0;
  spec.kv_heads =
      has_kv_heads ? config.size_or("num_key_value_heads", spec.heads) : defaults.kv_heads;
  const bool has_head_dim = config.has("head_dim") || defaults.head_dim > 0;
  spec.head_dim = config.size_or(
      "head_dim", defaults.head_dim > 0 ? defaults.head_dim : spec.hidden / spec.heads);
  if (!has_head_dim && spec.head_dim * spec.heads != spec.hidden) {
    config.refuse(fmt::format("num_attention_heads = {} does not divide hidden_size = {}",
                              spec.heads, spec.hidden),
                  "give head_dim where heads have a size of their own");
  }
  spec.ffn = config.size("intermediate_size");
  spec.max_positions = config.size_or("max_position_embeddings", defaults.max_positions);
  spec.norm_eps = config.number_or("rms_norm_eps", defaults.norm_eps);
  spec.rope = read_rope(config, {.head_dim = spec.head_dim,
                                 .max_positions = spec.max_positions,
                                 .theta_by_default = defaults.rope_theta});
  spec.qkv_bias = spec.attention_out_bias = config.flag_or("attention_bias", false);
  spec.mlp_bias = config.flag_or("mlp_bias", false);
  spec.tied_embeddings = config.flag_or("tie_word_embeddings", false);
  spec.attention_scale = 1.0 / std::sqrt(static_cast<double>(spec.head_dim));
  spec.init_stddev = config.number_or("initializer_range", 0.02);
  config.require_value("hidden_act", "silu");
  spec.dropout = config.dropout_asked({"attention_dropout"});
  spec.window = attention_window(config, family, spec.layers);
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
