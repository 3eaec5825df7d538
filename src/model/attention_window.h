#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/config_reader.h"

namespace heddle {

/// By layer whether `layer_types` makes it one with a window; absent without that list. A list of
/// other kinds of layers, or of another number, is refused.
std::optional<std::vector<bool>> sliding_layers(const ConfigReader& config, std::int64_t layers);

/// Refuses `layer_types` that has layers with a window where the config does not say how wide.
[[noreturn]] void refuse_missing_window(const ConfigReader& config);

/// The sliding windows of attention that a config of the llama, mistral, qwen, phi3 or starcoder2
/// family asks for, by layer, as transformers 5 reads it; none where a layer attends to everything.
/// mistral has one of 4096 where the config does not say; qwen's flag decides, and which layers
/// have it.
std::vector<std::optional<std::int64_t>> attention_windows(const ConfigReader& config,
                                                           const std::string& family,
                                                           std::int64_t layers);

}  // namespace heddle
