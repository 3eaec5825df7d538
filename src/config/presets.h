#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace heddle::config {

/// The model presets, from the smallest to the largest.
std::vector<std::string> preset_names();

/// The preset's config.json (Hugging Face form), built into the program; throws Error(usage) with
/// the nearest name when there is no such preset.
std::string_view preset_config(std::string_view name);

}  // namespace heddle::config
