#include <fmt/core.h>

#include <cmath>

#include "base/json.h"
#include "model/families.h"
#include "model/gelu_config.h"

namespace heddle {
namespace {

/// A size by GPT-2's own key, or by that of other families, which transformers takes as well.
std::int64_t size_of(const ConfigReader& config, const std::string& own, const std::string& usual) {
  const auto size = config.size_by({own, usual});
  if (!size) config.refuse(own + " is missing");
  return *size;
}

}  // namespace

ModelSpec gpt2_spec(const ConfigReader& config) {
  ModelSpec spec;
  spec.vocab = config.size("vocab_size");
  spec.hidden = size_of(config, "n_embd", "hidden_size");
  spec.layers = size_of(config, "n_layer", "num_hidden_layers");
  spec.heads = spec.kv_heads = size_of(config, "n_head", "num_attention_heads");
  spec.head_dim = spec.hidden / spec.heads;
  if (spec.head_dim * spec.heads != spec.hidden) {
    config.refuse(fmt::format("n_head = {} does not divide n_embd = {}", spec.heads, spec.hidden));
  }
  spec.ffn = config.size_or("n_inner", 4 * spec.hidden);
  spec.max_positions = config.size_by({"n_positions", "max_position_embeddings"}).value_or(1024);
  spec.norm = ModelSpec::Norm::layer;
  spec.norm_eps = config.number_or("layer_norm_epsilon", 1e-5);
  spec.mlp = ModelSpec::Mlp::gelu;
  spec.gelu = read_gelu(config, "activation_function", "gelu_new");
  spec.qkv_bias = spec.attention_out_bias = spec.mlp_bias = true;
  spec.linears_are_in_out = true;
  spec.tied_embeddings = config.flag_or("tie_word_embeddings", true);
  spec.attention_scale = config.flag_or("scale_attn_weights", true)
                             ? 1.0 / std::sqrt(static_cast<double>(spec.head_dim))
                             : 1.0;
  spec.init_stddev = config.number_or("initializer_range", 0.02);
  config.require_value("scale_attn_by_inverse_layer_idx", false);
  config.require_value("add_cross_attention", false);
  spec.dropout = config.dropout_asked({"attn_pdrop", "embd_pdrop", "resid_pdrop"});
  spec.names = {
      .token_embedding = "transformer.wte",
      .position_embedding = "transformer.wpe",
      .attention_norm = "transformer.h.{}.ln_1",
      .attention_post_norm = {},
      .mlp_norm = "transformer.h.{}.ln_2",
      .mlp_post_norm = {},
      .query = {},
      .key = {},
      .value = {},
      .attention_out = "transformer.h.{}.attn.c_proj",
      .fused_qkv = "transformer.h.{}.attn.c_attn",
      .query_norm = {},
      .key_norm = {},
      .gate = {},
      .up = "transformer.h.{}.mlp.c_fc",
      .down = "transformer.h.{}.mlp.c_proj",
      .fused_gate_up = {},
      .final_norm = "transformer.ln_f",
      .head = "lm_head",
  };
  return spec;
}

}  // namespace heddle
