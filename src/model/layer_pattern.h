#pragma once

#include <cstdint>
#include <functional>

#include "model/config_reader.h"
#include "model/spec.h"

namespace heddle {

/// Refuses more layers than any model has: each is an object, even when it is only planned.
void check_layers(const ConfigReader& config, std::int64_t layers);

/// Changes the blocks of single layers. Afterwards spec.blocks is again the shortest pattern that
/// gives all of them.
void change_layers(ModelSpec& spec,
                   const std::function<void(std::int64_t layer, BlockSpec& block)>& change);

}  // namespace heddle
