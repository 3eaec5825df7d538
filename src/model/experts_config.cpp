#include "model/experts_config.h"

#include <fmt/format.h>

#include "base/json.h"
#include "base/strings.h"

namespace heddle {
namespace {

std::int64_t expert_count(const ConfigReader& config, const ExpertKeys& family) {
  std::vector<std::string> keys = {"num_experts", "num_local_experts"};
  if (family.own_count != nullptr) keys.insert(keys.begin(), family.own_count);
  return config.size_by(keys).value_or(family.count);
}

}  // namespace

ExpertsSpec read_experts(const ConfigReader& config, const ExpertKeys& family) {
  config.require_value("mlp_bias", false);
  ExpertsSpec spec;
  spec.count = expert_count(config, family);
  spec.per_token = config.size_or("num_experts_per_tok", family.per_token);
  if (spec.per_token > spec.count) {
    config.refuse(fmt::format("num_experts_per_tok = {} is more than the {} experts there are",
                              spec.per_token, spec.count));
  }
  spec.width = family.width;
  spec.rule.renormalize = family.renormalizes;
  const double balance = config.number_or("router_aux_loss_coef", family.balance);
  if (balance < 0.0) config.refuse(fmt::format("router_aux_loss_coef = {} is negative", balance));
  if (config.flag_or("output_router_logits", false)) spec.loss.balance = balance;
  const std::string module = fmt::format("model.layers.{{}}.{}.", family.module);
  const auto of_expert = [&](const char* matrix) { return module + "experts.{}." + matrix; };
  spec.router = module + "gate";
  spec.gate = of_expert(family.matrices[0]);
  spec.up = of_expert(family.matrices[1]);
  spec.down = of_expert(family.matrices[2]);
  spec.stacked_router = "model.layers.{}.mlp.gate.weight";
  spec.stacked_up = "model.layers.{}.mlp.experts.gate_up_proj";
  spec.stacked_down = "model.layers.{}.mlp.experts.down_proj";
  return spec;
}

std::vector<bool> named_layers(const ConfigReader& config, const std::string& key,
                               std::int64_t layers) {
  std::vector<bool> named(static_cast<std::size_t>(layers), false);
  if (!config.has(key)) return named;
  const Json& list = config.json().at(key);
  if (!list.is_array()) config.refuse(fmt::format("{} is not a list", key));
  for (const Json& layer : list) {
    // Layers that the model does not have are named by configs of longer ones, and mean nothing.
    if (!layer.is_number_integer() || layer.get<std::int64_t>() < 0) {
      config.refuse(fmt::format("{} names {}, which is no layer", key, shortened(layer.dump())));
    }
    if (layer.get<std::int64_t>() < layers) named[layer.get<std::size_t>()] = true;
  }
  return named;
}

}  // namespace heddle
