#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "model/config_reader.h"

namespace heddle {

/// The sliding window of attention that a config of the llama, mistral or qwen family asks for, as
/// transformers 5 reads it; none where all layers attend to everything. mistral has one of 4096
/// where the config does not say; qwen's flag decides, and which layers have it.
std::optional<std::int64_t> attention_window(const ConfigReader& config, const std::string& family,
                                             std::int64_t layers);

}  // namespace heddle
