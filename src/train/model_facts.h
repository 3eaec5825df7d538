#pragma once

#include <filesystem>
#include <string>

#include "model/spec.h"
#include "train/run_identity.h"

namespace heddle {

/// "model layers", "model rope_theta", ...: what a model's weights cannot do without.
void add_model_facts(RunIdentity& identity, const ModelSpec& spec);

/// Tells the weights of one model folder from another's without reading all of them: names and
/// sizes of its safetensors files, and some bytes from the beginning, the middle and the end of
/// each.
std::string weights_digest(const std::filesystem::path& folder);

}  // namespace heddle
