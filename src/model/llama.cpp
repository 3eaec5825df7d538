#include <fmt/core.h>

#include <cmath>
#include <optional>

#include "base/json.h"
#include "model/attention_window.h"
#include "model/families.h"
#include "model/layer_pattern.h"
#include "model/rope_config.h"

namespace heddle {
namespace {

/// What transformers takes where a config does not say, and what the family does not have.
struct Defaults {
  std::int64_t kv_heads = 0;  ///< 0: as many as heads
  std::int64_t head_dim = 0;  ///< 0: the heads share the hidden dimensions
  std::int64_t max_positions = 0;
  double norm_eps = 1e-6;
  RopeKeys rope = {};  ///< less the sizes
  bool ties = false;
  std::optional<std::int64_t> padding = {};
  bool attention_bias = false;
  bool knows_attention_bias = true;  ///< false: none, or its own file reads it
  bool knows_mlp_bias = false;
  bool gates_by_silu = true;  ///< false: its own file reads the activation
  bool knows_windows = true;  ///< false: its own file reads which layers have one
  bool has_one_rope = true;   ///< false: its own file reads them
};

Defaults defaults_of(const std::string& family) {
  if (family == "mistral") {
    return {.kv_heads = 8, .max_positions = 131'072, .knows_attention_bias = false};
  }
  if (family == "mixtral") {
    return {.kv_heads = 8,
            .max_positions = 131'072,
            .norm_eps = 1e-5,
            .rope = {.theta_by_default = 1e6},
            .knows_attention_bias = false};
  }
  if (family == "olmoe") return {.max_positions = 4096, .norm_eps = 1e-5, .padding = 1};
  if (family == "olmo2") return {.max_positions = 2048, .norm_eps = 1e-5, .padding = 1};
  if (family == "qwen3_moe") return {.kv_heads = 4, .max_positions = 32'768};
  if (family == "qwen2") return {.kv_heads = 32, .max_positions = 32'768};
  if (family == "qwen3") return {.kv_heads = 32, .head_dim = 128, .max_positions = 32'768};
  if (family == "smollm3") {
    return {.kv_heads = 4,
            .max_positions = 32'768,
            .rope = {.theta_by_default = 2e6},
            .ties = true,
            .padding = 128'004,
            .knows_mlp_bias = true,
            .knows_windows = false};
  }
  if (family == "glm" || family == "glm4") {
    return {.kv_heads = 2,
            .head_dim = 128,
            .max_positions = 131'072,
            .norm_eps = 1.5625e-7,
            .rope = {.rotated = "partial_rotary_factor",
                     .rotated_by_default = 0.5,
                     .pairs_neighbours = true},
            .padding = 151'329,
            .attention_bias = true};
  }
  if (family == "phi3") {
    return {.max_positions = 4096,
            .norm_eps = 1e-5,
            .rope = {.rotated = "partial_rotary_factor",
                     .original_by_default = 4096.0,
                     .has_longrope_only = true},
            .padding = 32'000,
            .knows_attention_bias = false};
  }
  if (family == "gemma2" || family == "gemma3_text") {
    const bool is_third = family == "gemma3_text";
    return {.kv_heads = 4,
            .head_dim = 256,
            .max_positions = is_third ? 131'072 : 8192,
            .ties = true,
            .padding = 0,
            .gates_by_silu = false,
            .knows_windows = false,
            .has_one_rope = !is_third};
  }
  if (family == "starcoder2") {
    return {.kv_heads = 2, .max_positions = 4096, .ties = true, .gates_by_silu = false};
  }
  return {.max_positions = 2048, .knows_mlp_bias = true};
}

/// As PyTorch counts, from the end where it is negative; beyond the vocabulary there is none.
std::optional<std::int64_t> read_padding(const ConfigReader& config,
                                         std::optional<std::int64_t> by_default,
                                         std::int64_t vocab) {
  constexpr const char* kKey = "pad_token_id";
  if (!config.has(kKey) && (config.mentions(kKey) || !by_default)) return std::nullopt;
  const double said = config.number_or(kKey, static_cast<double>(by_default.value_or(0)));
  if (said != std::floor(said)) config.refuse(fmt::format("{} = {} is no token", kKey, said));
  const double id = said < 0 ? said + static_cast<double>(vocab) : said;
  if (id < 0 || id >= static_cast<double>(vocab)) return std::nullopt;
  return static_cast<std::int64_t>(id);
}

/// "swish" is the same function to transformers.
void require_silu(const ConfigReader& config) {
  constexpr const char* kKey = "hidden_act";
  if (config.text_or(kKey, "silu") != "swish") config.require_value(kKey, "silu");
}

}  // namespace

ModelSpec llama_spec(const ConfigReader& config) {
  ModelSpec spec;
  const std::string family = config.text_or("model_type", "llama");
  const Defaults defaults = defaults_of(family);
  spec.vocab = config.size("vocab_size");
  spec.hidden = config.size("hidden_size");
  spec.layers = config.size("num_hidden_layers");
  check_layers(config, spec.layers);
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
  if (defaults.has_one_rope) {
    RopeKeys rope = defaults.rope;
    rope.head_dim = spec.head_dim;
    rope.max_positions = spec.max_positions;
    spec.rope = read_rope(config, rope);
  }
  if (!defaults.knows_attention_bias) config.require_value("attention_bias", false);
  if (!defaults.knows_mlp_bias) config.require_value("mlp_bias", false);
  spec.qkv_bias = spec.attention_out_bias =
      config.flag_or("attention_bias", defaults.attention_bias);
  spec.mlp_bias = config.flag_or("mlp_bias", false);
  spec.tied_embeddings = config.flag_or("tie_word_embeddings", defaults.ties);
  spec.padding = read_padding(config, defaults.padding, spec.vocab);
  spec.attention_scale = 1.0 / std::sqrt(static_cast<double>(spec.head_dim));
  spec.init_stddev = config.number_or("initializer_range", 0.02);
  if (defaults.gates_by_silu) require_silu(config);
  spec.dropout = config.dropout_asked({"attention_dropout"});
  if (defaults.knows_windows) {
    const auto windows = attention_windows(config, family, spec.layers);
    change_layers(spec, [&](std::int64_t layer, BlockSpec& block) {
      block.window = windows[static_cast<std::size_t>(layer)];
    });
  }
  spec.names = {
      .token_embedding = "model.embed_tokens",
      .position_embedding = {},
      .attention_norm = "model.layers.{}.input_layernorm",
      .attention_post_norm = {},
      .mlp_norm = "model.layers.{}.post_attention_layernorm",
      .mlp_post_norm = {},
      .query = "model.layers.{}.self_attn.q_proj",
      .key = "model.layers.{}.self_attn.k_proj",
      .value = "model.layers.{}.self_attn.v_proj",
      .attention_out = "model.layers.{}.self_attn.o_proj",
      .fused_qkv = {},
      .query_norm = {},
      .key_norm = {},
      .gate = "model.layers.{}.mlp.gate_proj",
      .up = "model.layers.{}.mlp.up_proj",
      .down = "model.layers.{}.mlp.down_proj",
      .fused_gate_up = {},
      .final_norm = "model.norm",
      .head = "lm_head",
  };
  return spec;
}

}  // namespace heddle
