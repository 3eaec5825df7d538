#pragma once

#include <string>

#include "config/run_config.h"
#include "model/spec.h"

namespace heddle {

/// The model that a name stands for: a preset, a config.json, or a model folder. `vocab_size` other
/// than 0 replaces the config's.
ModelSpec named_model(const std::string& source, std::int64_t vocab_size = 0);

/// The model that a run file describes.
ModelSpec configured_model(const config::ModelConfig& model);

}  // namespace heddle
