#include <fmt/core.h>

#include <optional>

#include "base/json.h"
#include "base/strings.h"
#include "model/attention_window.h"
#include "model/families.h"
#include "model/layer_pattern.h"

namespace heddle {
namespace {

/// By layer whether q and k are rotated: as no_rope_layers says, which has a 1 where they are, or
/// all but every so many.
std::vector<bool> rotating_layers(const ConfigReader& config, std::int64_t layers) {
  std::vector<bool> rotates;
  if (!config.has("no_rope_layers")) {
    const std::int64_t interval = config.size_or("no_rope_layer_interval", 4);
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      rotates.push_back((layer + 1) % interval != 0);
    }
    return rotates;
  }
  const Json& list = config.json().at("no_rope_layers");
  if (!list.is_array() || static_cast<std::int64_t>(list.size()) < layers) {
    config.refuse(fmt::format("no_rope_layers is not a list of at least {} layers", layers));
  }
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const Json& flag = list[static_cast<std::size_t>(layer)];
    if (flag != 0 && flag != 1) {
      config.refuse(
          fmt::format("no_rope_layers has {}, which is neither 0 nor 1", shortened(flag.dump())));
    }
    rotates.push_back(flag == 1);
  }
  return rotates;
}

}  // namespace

// SmolLM3 is Llama's block, in which some layers do not rotate q and k; with a window, these have
// it, or those that layer_types names.
ModelSpec smollm3_spec(const ConfigReader& config) {
  ModelSpec spec = llama_spec(config);
  const std::vector<bool> rotates = rotating_layers(config, spec.layers);
  const auto slides = sliding_layers(config, spec.layers);
  std::optional<std::int64_t> window;
  if (config.flag_or("use_sliding_window", false) && config.has("sliding_window")) {
    window = config.size("sliding_window");
  }
  change_layers(spec, [&](std::int64_t layer, BlockSpec& block) {
    const auto at = static_cast<std::size_t>(layer);
    const bool has_window = slides ? (*slides)[at] : window && !rotates[at];
    if (has_window && !window) refuse_missing_window(config);
    block.rotates = rotates[at];
    block.window = has_window ? window : std::nullopt;
  });
  return spec;
}

}  // namespace heddle
