#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "model/spec.h"

namespace heddle {

/// The ModelSpec of a config.json, by its model_type. `where` names the file in messages.
ModelSpec model_spec(const Json& config, const std::string& where);
ModelSpec read_model_spec(const std::filesystem::path& config_json);

/// The model_types that are known.
std::vector<std::string> known_families();

}  // namespace heddle
