#pragma once

#include <array>

#include "model/config_reader.h"

namespace heddle {

/// How the configs and files of a family speak of experts.
struct ExpertKeys {
  // What the config does not say:
  std::int64_t count = 0, per_token = 0;
  const char* own_count = nullptr;  ///< one more name of their number
  std::int64_t width = 0;
  bool renormalizes = true;
  double balance = 0.0;  ///< router_aux_loss_coef
  /// In files: "model.layers.3.MODULE.experts.5.MATRIX.weight", the matrices being gate, up, down.
  const char* module = "mlp";
  std::array<const char*, 3> matrices = {};
};

/// The experts of a config.json. Their number goes by num_experts or num_local_experts
/// (transformers 4 and 5) or by the family's own name; where several are given they are equal. As
/// in transformers, router_aux_loss_coef takes part in training where output_router_logits is true.
ExpertsSpec read_experts(const ConfigReader& config, const ExpertKeys& family);

/// Which layers a list of their numbers names; none where the key is absent.
std::vector<bool> named_layers(const ConfigReader& config, const std::string& key,
                               std::int64_t layers);

}  // namespace heddle
