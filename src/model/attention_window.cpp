#include "model/attention_window.h"

#include <fmt/core.h>

#include "base/json.h"
#include "base/strings.h"

namespace heddle {
namespace {

constexpr std::int64_t kUsualWindow = 4096;  // of mistral and qwen

/// null is none.
std::optional<std::int64_t> window_asked(const ConfigReader& config) {
  if (!config.mentions("sliding_window")) return kUsualWindow;
  if (!config.has("sliding_window")) return std::nullopt;
  return config.size("sliding_window");
}

/// Whether a layer has a window, by the list of their types; absent without a list.
std::optional<bool> types_have_window(const ConfigReader& config, std::int64_t layers) {
  if (!config.has("layer_types")) return std::nullopt;
  const Json& types = config.json().at("layer_types");
  if (!types.is_array()) config.refuse("layer_types is not a list");
  if (static_cast<std::int64_t>(types.size()) != layers) {
    config.refuse(fmt::format("layer_types names {} layers, and num_hidden_layers is {}",
                              types.size(), layers));
  }
  bool any = false;
  for (const Json& type : types) {
    if (type == "sliding_attention") {
      any = true;
    } else if (type != "full_attention") {
      config.refuse(fmt::format("asks for a layer of type {}, which heddle does not do",
                                shortened(type.dump())));
    }
  }
  return any;
}

std::optional<std::int64_t> qwen_window(const ConfigReader& config, std::int64_t layers) {
  const auto window =
      config.flag_or("use_sliding_window", false) ? window_asked(config) : std::nullopt;
  const auto by_type = types_have_window(config, layers);
  if (!window && by_type.value_or(false)) {
    config.refuse("layer_types has sliding_attention, but there is no window for it",
                  "set use_sliding_window and sliding_window, or make all full_attention");
  }
  // The first layers go without.
  const double first = config.number_or("max_window_layers", 28);
  return by_type.value_or(static_cast<double>(layers) > first) ? window : std::nullopt;
}

}  // namespace

std::optional<std::int64_t> attention_window(const ConfigReader& config, const std::string& family,
                                             std::int64_t layers) {
  if (family == "qwen2" || family == "qwen3") return qwen_window(config, layers);
  // One window for all layers, whatever max_window_layers says.
  if (family == "qwen3_moe") {
    return config.flag_or("use_sliding_window", false) ? window_asked(config) : std::nullopt;
  }
  if (family == "mixtral") {
    return config.mentions("sliding_window") ? window_asked(config) : std::nullopt;
  }
  if (family == "mistral") {
    if (config.has("layer_types")) {
      config.refuse("has layer_types, which makes it a ministral model to transformers",
                    "remove layer_types; sliding_window, or null for none, then holds for all");
    }
    return window_asked(config);
  }
  const bool asks = config.has("sliding_window") && config.flag_or("use_sliding_window", true);
  if (asks || types_have_window(config, layers).value_or(false)) {
    config.refuse("asks for sliding-window attention, which a llama model does not have",
                  "set sliding_window to null, or model_type to mistral if it was trained as one");
  }
  return std::nullopt;
}

}  // namespace heddle
