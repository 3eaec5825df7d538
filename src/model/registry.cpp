#include "model/registry.h"

#include <fmt/ranges.h>

#include <array>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/strings.h"
#include "model/families.h"
#include "model/layer_pattern.h"

namespace heddle {
namespace {

using Family = std::pair<const char*, ModelSpec (*)(const ConfigReader&)>;
constexpr std::array<Family, 19> kFamilies = {{
    {"gemma2", gemma_spec},
    {"gemma3_text", gemma_spec},
    {"glm", glm_spec},
    {"glm4", glm_spec},
    {"gpt2", gpt2_spec},
    {"gpt_neox", gpt_neox_spec},
    {"granite", granite_spec},
    {"heddle_moe", heddle_moe_spec},
    {"llama", llama_spec},
    {"mistral", llama_spec},
    {"mixtral", mixtral_spec},
    {"olmo2", olmo2_spec},
    {"olmoe", olmoe_spec},
    {"phi3", phi3_spec},
    {"qwen2", qwen_spec},
    {"qwen3", qwen_spec},
    {"qwen3_moe", qwen_spec},
    {"smollm3", smollm3_spec},
    {"starcoder2", starcoder2_spec},
}};

/// What no family can mean, and a product that would overflow later arithmetic.
void check_sizes(const ModelSpec& spec, const ConfigReader& config) {
  if (spec.head_dim < 1) config.refuse("there are more attention heads than hidden dimensions");
  if (spec.heads % spec.kv_heads != 0) {
    config.refuse(fmt::format("num_key_value_heads = {} does not divide num_attention_heads = {}",
                              spec.kv_heads, spec.heads),
                  config.mentions("num_key_value_heads")
                      ? ""
                      : fmt::format("it is missing, and {} is what it means for this family then",
                                    spec.kv_heads));
  }
  check_layers(config, spec.layers);
  if (spec.heads * spec.head_dim > ConfigReader::kLargestSize) {
    config.refuse(fmt::format("{} attention heads of {} dimensions are more than any model has",
                              spec.heads, spec.head_dim));
  }
  // In floating point, because the count itself might overflow.
  const double experts_width =
      spec.experts ? static_cast<double>(spec.experts->count) *
                         static_cast<double>(spec.experts->width + spec.experts->shared_width)
                   : 0.0;
  const double parameters =
      static_cast<double>(spec.layers) * static_cast<double>(spec.hidden) *
      (static_cast<double>(4 * spec.heads * spec.head_dim + 3 * spec.ffn) + 3.0 * experts_width);
  if (parameters > 1e15) {
    config.refuse(fmt::format("{:.0e} parameters are more than any model has", parameters));
  }
  if (spec.norm_eps <= 0.0) config.refuse("the norm's epsilon must be positive");
  if (spec.init_stddev < 0.0 || spec.init_stddev > 1.0) {
    config.refuse(fmt::format("initializer_range = {} is no standard deviation of weights: it must "
                              "be from 0 to 1",
                              spec.init_stddev),
                  "0.02 is usual");
  }
}

/// What transformers does for every family where a config asks for it, and heddle for none.
void refuse_unsupported(const ConfigReader& config) {
  if (config.has("quantization_config")) {
    config.refuse("its weights are quantized (quantization_config), which heddle does not do",
                  "use a folder with bf16, f16 or f32 weights");
  }
  // Also null says so to transformers.
  if (config.mentions("is_causal") && !config.flag_or("is_causal", false)) {
    config.refuse("is_causal is not true, and tokens would attend to later ones",
                  "heddle trains models that attend to earlier tokens alone");
  }
  config.require_value("per_layer_config", Json::object());
  config.require_value("transformers_weights", nullptr);
}

}  // namespace

std::vector<std::string> known_families() {
  std::vector<std::string> names;
  for (const auto& [name, make] : kFamilies) names.emplace_back(name);
  return names;
}

ModelSpec model_spec(const Json& config, const std::string& where) {
  const ConfigReader reader(config, where);
  const std::string type = reader.text_or("model_type", "");
  if (type.empty()) {
    reader.refuse(
        "model_type is missing",
        "it names the family: one of " + fmt::format("{}", fmt::join(known_families(), ", ")));
  }
  for (const auto& [name, make] : kFamilies) {
    if (type != name) continue;
    refuse_unsupported(reader);
    ModelSpec spec = make(reader);
    spec.family = type;
    check_sizes(spec, reader);
    spec.config = std::make_shared<const Json>(config);
    return spec;
  }
  reader.refuse(fmt::format("model_type \"{}\" is not known", shortened(type)),
                fmt::format("known: {}", fmt::join(known_families(), ", ")));
}

ModelSpec read_model_spec(const std::filesystem::path& config_json) {
  return model_spec(read_json_file(config_json), config_json.string());
}

}  // namespace heddle
