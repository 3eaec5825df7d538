#include "cli/layers_option.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

#include "base/error.h"
#include "base/strings.h"

namespace heddle::cli {
namespace {

/// More than any model has; what is too many of those there are, the model says.
constexpr int kMostLayers = 1 << 16;

std::optional<int> layer_number(std::string_view text) {
  int value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, wrong] = std::from_chars(text.data(), end, value);
  const bool is_number = wrong == std::errc() && stop == end && value >= 0 && value < kMostLayers;
  return is_number ? std::optional(value) : std::nullopt;
}

}  // namespace

std::vector<int> parse_layers(const std::string& text) {
  std::vector<int> layers;
  for (const auto& word : split(text, ',')) {
    const std::string_view whole = word;
    const auto dash = whole.find('-');
    const auto first = layer_number(whole.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : layer_number(whole.substr(dash + 1));
    if (!first || !last || *last < *first) {
      throw Error(ErrorCode::usage, fmt::format("--layers {}: \"{}\" names no layers", text, word),
                  "write --layers 0-3,6-11: layers from 0 on, in the order in which tokens go "
                  "through them");
    }
    for (int layer = *first; layer <= *last; ++layer) layers.push_back(layer);
  }
  return layers;
}

}  // namespace heddle::cli
