#include "base/json.h"
#include "model/experts_config.h"
#include "model/families.h"

namespace heddle {

// Mixtral is Mistral's block with experts in place of every MLP.
ModelSpec mixtral_spec(const ConfigReader& config) {
  ModelSpec spec = llama_spec(config);
  config.require_value("router_jitter_noise", 0.0);
  spec.experts = read_experts(config, {.count = 8,
                                       .per_token = 2,
                                       .width = spec.ffn,
                                       .renormalizes = true,
                                       .balance = 0.001,
                                       .module = "block_sparse_moe",
                                       .matrices = {"w1", "w3", "w2"}});
  for (BlockSpec& block : spec.blocks) block.branches = {"attention", "experts"};
  return spec;
}

}  // namespace heddle
