#include <fmt/format.h>

#include <algorithm>

#include "base/json.h"
#include "model/experts_config.h"
#include "model/families.h"

namespace heddle {
namespace {

/// Routing by the keys of DeepSeek-V3's configs.
void read_rule(const ConfigReader& config, ExpertsSpec& experts) {
  config.require_value("topk_method", "greedy");
  const std::string score = config.text_or("scoring_func", "sigmoid");
  if (score != "sigmoid" && score != "softmax") {
    config.refuse(fmt::format("scoring_func = \"{}\" is not known", score),
                  "use \"sigmoid\" or \"softmax\"");
  }
  ops::RouterRule& rule = experts.rule;
  rule.score =
      score == "sigmoid" ? ops::RouterRule::Score::sigmoid : ops::RouterRule::Score::softmax;
  rule.scale = config.number_or("routed_scaling_factor", 1.0);
  if (rule.scale <= 0.0) config.refuse("routed_scaling_factor must be positive");
  rule.groups = config.size_or("n_group", 1);
  rule.kept_groups = config.size_or("topk_group", rule.groups);
  if (experts.count % rule.groups != 0 || rule.kept_groups > rule.groups ||
      experts.per_token > experts.count / rule.groups * rule.kept_groups) {
    config.refuse(fmt::format("{} of {} experts cannot be chosen from topk_group = {} of n_group = "
                              "{} groups",
                              experts.per_token, experts.count, rule.kept_groups, rule.groups),
                  "n_group divides the experts, and the groups kept hold enough of them");
  }
}

}  // namespace

// Our own: Llama's attention with DeepSeek-V3's experts, in the keys and tensor names of that
// model. transformers does not open it.
ModelSpec heddle_moe_spec(const ConfigReader& config) {
  ModelSpec spec = llama_spec(config);
  const std::int64_t width = config.size("moe_intermediate_size");
  spec.experts = read_experts(config, {.count = config.size_or("n_routed_experts", 8),
                                       .per_token = 2,
                                       .width = width,
                                       .renormalizes = config.flag_or("norm_topk_prob", true),
                                       .balance = 0.001,
                                       .module = "mlp",
                                       .matrices = {"gate_proj", "up_proj", "down_proj"}});
  read_rule(config, *spec.experts);
  if (config.has("n_shared_experts")) {
    spec.experts->shared_width = config.size("n_shared_experts") * width;
  }
  const std::string shared = "model.layers.{}.mlp.shared_experts.";
  spec.experts->shared_gate = shared + "gate_proj";
  spec.experts->shared_up = shared + "up_proj";
  spec.experts->shared_down = shared + "down_proj";
  const double dense = config.number_or("first_k_dense_replace", 0);
  spec.blocks.clear();
  const std::int64_t pattern = dense > 0 ? spec.layers : 1;
  for (std::int64_t layer = 0; layer < pattern; ++layer) {
    const bool is_dense = static_cast<double>(layer) < dense;
    spec.blocks.push_back({.branches = {"attention", is_dense ? "dense" : "experts"}});
  }
  return spec;
}

}  // namespace heddle
