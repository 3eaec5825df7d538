#include <fmt/format.h>

#include <algorithm>

#include "base/json.h"
#include "model/experts_config.h"
#include "model/families.h"
#include "model/layer_pattern.h"

namespace heddle {
namespace {

using Choice = GateRule::Choice;

/// How experts are chosen: by their scores, with a bias that keeps them balanced (noaux_tc), or by
/// rules that DeepSeek-V3 does not have.
void read_method(const ConfigReader& config, ExpertsSpec& experts) {
  const std::string method = config.text_or("topk_method", "greedy");
  if (method == "noaux_tc") {
    experts.bias = "model.layers.{}.mlp.gate.e_score_correction_bias";
    experts.bias_rate = 0.001;
  } else if (method == "sinkhorn") {
    experts.gating.choice = Choice::sinkhorn;
  } else if (method == "expert_choice") {
    experts.gating.choice = Choice::expert_choice;
  } else if (method != "greedy") {
    config.refuse(fmt::format("topk_method = \"{}\" is not known", method),
                  "use \"greedy\", \"noaux_tc\", \"sinkhorn\" or \"expert_choice\"");
  }
}

void check_method(const ConfigReader& config, const ExpertsSpec& experts) {
  const ops::RouterRule& rule = experts.rule;
  const Choice choice = experts.gating.choice;
  if (choice != Choice::top_scores && rule.groups > 1) {
    config.refuse(
        fmt::format("n_group = {} is for topk_method \"greedy\" and \"noaux_tc\"", rule.groups),
        "remove it");
  }
  if (choice == Choice::expert_choice && rule.score != ops::RouterRule::Score::softmax) {
    config.refuse("topk_method = \"expert_choice\" goes by the softmax of tokens",
                  "set scoring_func to \"softmax\"");
  }
  if (experts.per_token == 1 && rule.renormalize && choice != Choice::expert_choice) {
    config.refuse(
        "num_experts_per_tok = 1 with norm_topk_prob makes every weight 1, and the "
        "router learns nothing",
        "set norm_topk_prob to false");
  }
}

/// Routing by the keys of DeepSeek-V3's configs.
void read_rule(const ConfigReader& config, ExpertsSpec& experts) {
  read_method(config, experts);
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
  check_method(config, experts);
  rule.kept_groups = config.size_or("topk_group", rule.groups);
  if (experts.count % rule.groups != 0 || rule.kept_groups > rule.groups ||
      experts.per_token > experts.count / rule.groups * rule.kept_groups) {
    config.refuse(fmt::format("{} of {} experts cannot be chosen from topk_group = {} of n_group = "
                              "{} groups",
                              experts.per_token, experts.count, rule.kept_groups, rule.groups),
                  "n_group divides the experts, and the groups kept hold enough of them");
  }
}

/// DeepSeek's loss of balance is of another scale than ours, and how one trains.
void refuse_balance(const ConfigReader& config) {
  const double alpha = config.number_or("aux_loss_alpha", 0.0);
  if (alpha == 0.0) return;
  config.refuse(fmt::format("aux_loss_alpha = {} is not read from a model's config", alpha),
                fmt::format("remove it, and train with model.router_aux_loss = {} and "
                            "model.router_balance = \"{}\"",
                            alpha, config.flag_or("seq_aux", true) ? "deepseek" : "megatron"));
}

}  // namespace

// Our own: Llama's attention with DeepSeek-V3's experts, in the keys and tensor names of that
// model. transformers does not open it.
ModelSpec heddle_moe_spec(const ConfigReader& config) {
  ModelSpec spec = llama_spec(config);
  const std::int64_t width = config.size("moe_intermediate_size");
  spec.experts = read_experts(config, {.count = 8,
                                       .per_token = 2,
                                       .own_count = "n_routed_experts",
                                       .width = width,
                                       .renormalizes = config.flag_or("norm_topk_prob", true),
                                       .balance = 0.001,
                                       .module = "mlp",
                                       .matrices = {"gate_proj", "up_proj", "down_proj"}});
  read_rule(config, *spec.experts);
  if (config.has("cosine_router_dim")) {
    spec.experts->cosine_width = config.size("cosine_router_dim");
  }
  if (config.number_or("n_shared_experts", 0) != 0) {
    spec.experts->shared_width = config.size("n_shared_experts") * width;
  }
  refuse_balance(config);
  const auto of_shared = [](const char* matrix) {
    return fmt::format("model.layers.{{}}.mlp.shared_experts.{}", matrix);
  };
  spec.experts->shared_gate = of_shared("gate_proj");
  spec.experts->shared_up = of_shared("up_proj");
  spec.experts->shared_down = of_shared("down_proj");
  const double dense = config.number_or("first_k_dense_replace", 0);
  const std::int64_t every = config.size_or("moe_layer_freq", 1);
  change_layers(spec, [&](std::int64_t layer, BlockSpec& block) {
    const bool is_dense = static_cast<double>(layer) < dense || layer % every != 0;
    block.branches = {"attention", is_dense ? "dense" : "experts"};
  });
  return spec;
}

}  // namespace heddle
