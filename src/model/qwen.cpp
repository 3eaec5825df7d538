#include "model/experts_config.h"
#include "model/families.h"
#include "model/layer_pattern.h"

namespace heddle {

namespace {

/// Layers without experts in between: those that mlp_only_layers names, and all but every
/// decoder_sparse_step-th.
void add_experts(const ConfigReader& config, ModelSpec& spec) {
  spec.experts = read_experts(config, {.count = 128,
                                       .per_token = 8,
                                       .width = config.size_or("moe_intermediate_size", 768),
                                       .renormalizes = config.flag_or("norm_topk_prob", false),
                                       .balance = 0.001,
                                       .module = "mlp",
                                       .matrices = {"gate_proj", "up_proj", "down_proj"}});
  const std::int64_t step = config.size_or("decoder_sparse_step", 1);
  const std::vector<bool> is_dense = named_layers(config, "mlp_only_layers", spec.layers);
  change_layers(spec, [&](std::int64_t layer, BlockSpec& block) {
    const bool has_experts = !is_dense[static_cast<std::size_t>(layer)] && (layer + 1) % step == 0;
    block.branches = {"attention", has_experts ? "experts" : "dense"};
  });
}

}  // namespace

// Qwen is Llama's block with biases on q, k, v (qwen2) or with norms on q and k of each head
// (qwen3), and with experts in place of MLPs (qwen3_moe).
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
  if (config.text_or("model_type", "") == "qwen3_moe") add_experts(config, spec);
  return spec;
}

}  // namespace heddle
