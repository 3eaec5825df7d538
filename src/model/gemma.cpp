#include <fmt/core.h>

#include <cmath>

#include "base/json.h"
#include "model/attention_window.h"
#include "model/families.h"
#include "model/gelu_config.h"
#include "model/layer_pattern.h"
#include "model/rope_config.h"

namespace heddle {
namespace {

/// What a cap may be: null or absent is none, unless the family has one where the config is silent.
double read_cap(const ConfigReader& config, const std::string& key, double by_default) {
  if (!config.has(key)) return config.mentions(key) ? 0.0 : by_default;
  const double cap = config.number(key);
  if (cap <= 0.0) config.refuse(fmt::format("{} = {} is not positive", key, cap), "null is no cap");
  return cap;
}

/// Layers with a window: those that layer_types names, or all but every so many.
void read_windows(const ConfigReader& config, std::int64_t full_every, ModelSpec& spec) {
  const auto slides = sliding_layers(config, spec.layers);
  if (config.mentions("sliding_window") && !config.has("sliding_window")) {
    config.refuse("sliding_window is null, and layers of this family have one",
                  "set sliding_window to the tokens that a token attends to");
  }
  const std::int64_t window = config.size_or("sliding_window", 4096);
  change_layers(spec, [&](std::int64_t layer, BlockSpec& block) {
    const bool has_window =
        slides ? (*slides)[static_cast<std::size_t>(layer)] : (layer + 1) % full_every != 0;
    if (has_window) block.window = window;
  });
}

/// Gemma 3 has a rotary embedding for each kind of layer: `rope_parameters` by kind, or the older
/// keys, of which `rope_scaling` is for layers without a window.
RopeSpec read_rope_of(const ConfigReader& config, const ModelSpec& spec, bool of_windows) {
  const std::string kind = of_windows ? "sliding_attention" : "full_attention";
  Json keys = Json::object();
  const auto by_kind = config.section("rope_parameters");
  if (by_kind && by_kind->has(kind)) keys = by_kind->section(kind)->json();
  if (const auto scaling = config.section("rope_scaling"); scaling && !of_windows) {
    // Without rope_parameters transformers has a rope_type already, and passes over "type".
    if (!by_kind && scaling->has("type") && !scaling->has("rope_type")) {
      scaling->refuse("has type, and transformers reads rope_type in models of this family",
                      "call it rope_type");
    }
    keys.update(scaling->json());
  }
  const double theta = of_windows ? config.number_or("rope_local_base_freq", 1e4)
                                  : config.number_or("rope_theta", 1e6);
  const Json only = {{"rope_parameters", std::move(keys)}, {"rope_theta", theta}};
  return read_rope(ConfigReader(only, fmt::format("config.json: rope of {}", kind)),
                   {.head_dim = spec.head_dim, .max_positions = spec.max_positions});
}

}  // namespace

// Gemma 2 and 3 are Llama's block with norms before and behind branches that multiply by one more
// than their weights, GELU in the MLP, scaled embeddings and windows in most layers. Gemma 2 caps
// scores and logits; Gemma 3 has norms of q and k, and other angles in layers with a window.
ModelSpec gemma_spec(const ConfigReader& config) {
  ModelSpec spec = llama_spec(config);
  const bool is_third = config.text_or("model_type", "") == "gemma3_text";
  config.require_value("use_bidirectional_attention", false);
  spec.norm_adds_one = true;
  spec.mlp = ModelSpec::Mlp::geglu;
  spec.gelu = read_gelu(config, "hidden_activation", "gelu_pytorch_tanh");
  spec.embedding_scale = std::sqrt(static_cast<double>(spec.hidden));
  const double scalar = config.number_or("query_pre_attn_scalar", 256.0);
  if (scalar <= 0.0) {
    config.refuse(fmt::format("query_pre_attn_scalar = {} is not positive", scalar));
  }
  spec.attention_scale = 1.0 / std::sqrt(scalar);
  // transformers passes over a cap of scores in Gemma 3.
  if (is_third) config.require_value("attn_logit_softcapping", nullptr);
  spec.attention_cap = is_third ? 0.0 : read_cap(config, "attn_logit_softcapping", 50.0);
  spec.logits_cap = read_cap(config, "final_logit_softcapping", is_third ? 0.0 : 30.0);
  read_windows(config, is_third ? config.size_or("sliding_window_pattern", 6) : 2, spec);
  spec.names.mlp_norm = "model.layers.{}.pre_feedforward_layernorm";
  spec.names.attention_post_norm = "model.layers.{}.post_attention_layernorm";
  spec.names.mlp_post_norm = "model.layers.{}.post_feedforward_layernorm";
  if (!is_third) return spec;
  spec.qk_norm = true;
  spec.names.query_norm = "model.layers.{}.self_attn.q_norm";
  spec.names.key_norm = "model.layers.{}.self_attn.k_norm";
  spec.rope = read_rope_of(config, spec, false);
  spec.window_rope = read_rope_of(config, spec, true);
  return spec;
}

}  // namespace heddle
