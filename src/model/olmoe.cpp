#include "base/json.h"
#include "model/experts_config.h"
#include "model/families.h"

namespace heddle {

// OLMoE is Llama's block with experts in place of every MLP, and with norms of q and k over all of
// their heads together.
ModelSpec olmoe_spec(const ConfigReader& config) {
  ModelSpec spec = llama_spec(config);
  config.require_value("clip_qkv", nullptr);
  spec.qk_norm = spec.qk_norm_joins_heads = true;
  spec.names.query_norm = "model.layers.{}.self_attn.q_norm";
  spec.names.key_norm = "model.layers.{}.self_attn.k_norm";
  spec.experts = read_experts(config, {.count = 64,
                                       .per_token = 8,
                                       .width = spec.ffn,
                                       .renormalizes = config.flag_or("norm_topk_prob", false),
                                       .balance = 0.01,
                                       .module = "mlp",
                                       .matrices = {"gate_proj", "up_proj", "down_proj"}});
  for (BlockSpec& block : spec.blocks) block.branches = {"attention", "experts"};
  return spec;
}

}  // namespace heddle
