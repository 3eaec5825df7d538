#include "model/attention_window.h"

#include <fmt/core.h>

#include <algorithm>

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

using Windows = std::vector<std::optional<std::int64_t>>;

Windows in_all(std::optional<std::int64_t> window, std::int64_t layers) {
  return Windows(static_cast<std::size_t>(layers), window);
}

Windows where(const std::vector<bool>& slides, std::optional<std::int64_t> window) {
  Windows windows;
  for (const bool has_window : slides) {
    windows.push_back(has_window ? window : std::nullopt);
  }
  return windows;
}

Windows qwen_windows(const ConfigReader& config, std::int64_t layers) {
  const auto window =
      config.flag_or("use_sliding_window", false) ? window_asked(config) : std::nullopt;
  auto slides = sliding_layers(config, layers);
  if (!window && slides && std::ranges::find(*slides, true) != slides->end()) {
    refuse_missing_window(config);
  }
  if (!slides) {
    slides.emplace();
    const double first = config.number_or("max_window_layers", 28);  // those before go without
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      slides->push_back(static_cast<double>(layer) >= first);
    }
  }
  return where(*slides, window);
}

}  // namespace

void refuse_missing_window(const ConfigReader& config) {
  config.refuse("layer_types has sliding_attention, but there is no window for it",
                "set use_sliding_window and sliding_window, or make all full_attention");
}

std::optional<std::vector<bool>> sliding_layers(const ConfigReader& config, std::int64_t layers) {
  if (!config.has("layer_types")) return std::nullopt;
  const Json& types = config.json().at("layer_types");
  if (!types.is_array()) config.refuse("layer_types is not a list");
  if (static_cast<std::int64_t>(types.size()) != layers) {
    config.refuse(fmt::format("layer_types names {} layers, and num_hidden_layers is {}",
                              types.size(), layers));
  }
  std::vector<bool> slides;
  for (const Json& type : types) {
    const bool is_full = type == "full_attention" || type == "attention";  // as it was called once
    if (type != "sliding_attention" && !is_full) {
      config.refuse(fmt::format("asks for a layer of type {}, which heddle does not do",
                                shortened(type.dump())));
    }
    slides.push_back(!is_full);
  }
  return slides;
}

std::vector<std::optional<std::int64_t>> attention_windows(const ConfigReader& config,
                                                           const std::string& family,
                                                           std::int64_t layers) {
  if (family == "qwen2" || family == "qwen3") return qwen_windows(config, layers);
  // One window for all layers, whatever max_window_layers says.
  if (family == "qwen3_moe") {
    return in_all(config.flag_or("use_sliding_window", false) ? window_asked(config) : std::nullopt,
                  layers);
  }
  if (family == "mixtral" || family == "phi3" || family == "starcoder2") {
    return in_all(config.mentions("sliding_window") ? window_asked(config) : std::nullopt, layers);
  }
  if (family == "mistral") {
    if (config.has("layer_types")) {
      config.refuse("has layer_types, which makes it a ministral model to transformers",
                    "remove layer_types; sliding_window, or null for none, then holds for all");
    }
    return in_all(window_asked(config), layers);
  }
  const bool asks = config.has("sliding_window") && config.flag_or("use_sliding_window", true);
  const auto slides = sliding_layers(config, layers);
  if (asks || (slides && std::ranges::find(*slides, true) != slides->end())) {
    config.refuse(
        fmt::format("asks for sliding-window attention, which a {} model does not have", family),
        "set sliding_window to null, or model_type to mistral if it was trained as one");
  }
  return in_all(std::nullopt, layers);
}

}  // namespace heddle
