#pragma once

#include <map>

#include "checkpoint/convert.h"
#include "checkpoint/stored_tensors.h"
#include "model/spec.h"

namespace heddle {

/// For `convert`: where tensors of a model's experts and the rows of its routers come from when
/// experts get other numbers. `order`: by layer with experts, for each new number the old one
/// (renumbering_of). Error(usage) where the model has other layers or experts, or chooses among
/// groups of neighbours; Error(data) where `weights` lack them.
std::map<std::string, TensorOrigin> renumbered_experts(const ModelSpec& spec,
                                                       const StoredTensors& weights,
                                                       const std::vector<std::vector<int>>& order);

}  // namespace heddle
