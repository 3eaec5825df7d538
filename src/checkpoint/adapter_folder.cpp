#include "checkpoint/adapter_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "base/strings.h"

namespace heddle {
namespace fs = std::filesystem;
namespace {

/// Wider than any layer.
constexpr double kMostRank = 1 << 30;

/// What changes the result and is not done here, with the value that leaves it out.
struct Unsupported {
  const char* key;
  Json off;
};

const std::vector<Unsupported>& unsupported() {
  static const std::vector<Unsupported> all = {
      {"use_dora", false},
      {"use_bdlora", nullptr},
      {"velora_config", nullptr},
      {"lora_bias", false},
      {"bias", "none"},
      {"rank_pattern", Json::object()},
      {"alpha_pattern", Json::object()},
      {"modules_to_save", nullptr},
      {"trainable_token_indices", nullptr},
      {"layer_replication", nullptr},
      {"target_parameters", nullptr},
      {"alora_invocation_tokens", nullptr},
      {"kasa_config", nullptr},
      {"arrow_config", nullptr},
      {"monteclora_config", nullptr},
  };
  return all;
}

/// Whether PEFT, where it loads an adapter that began so, changes the weights of the model below.
/// Some of the names it knows in capitals too.
bool changes_base(const Json& init) {
  static constexpr std::array<std::string_view, 5> kKinds = {"pissa", "olora", "corda", "loftq",
                                                             "lora_ga"};
  if (!init.is_string()) return false;
  std::string name = init.get<std::string>();
  std::ranges::transform(name, name.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return std::ranges::any_of(kKinds, [&](std::string_view kind) { return name.starts_with(kind); });
}

bool is_off(const Json& value, const Json& off) {
  return value == off || value.is_null() || (value.is_structured() && value.empty());
}

AdapterConfig read_config(const fs::path& path) {
  const std::string where = path.string();
  const Json json = read_json_file(path);
  const auto refuse = [&](const std::string& what, const std::string& hint = "") {
    throw Error(ErrorCode::data, where + ": " + what, hint);
  };
  if (!json.is_object()) refuse("not an object");
  if (const Json kind = json.value("peft_type", Json("LORA")); kind != "LORA") {
    const std::string name = kind.is_string() ? kind.get<std::string>() : kind.dump();
    refuse(fmt::format("adapters of kind {} are not read", shortened(name)), "LORA is");
  }
  for (const Unsupported& feature : unsupported()) {
    const auto at = json.find(feature.key);
    if (at != json.end() && !is_off(*at, feature.off)) {
      refuse(fmt::format("{} = {} is not supported", feature.key, shortened(at->dump())));
    }
  }
  const Json init = json.value("init_lora_weights", Json(true));
  if (changes_base(init)) {
    refuse(fmt::format("init_lora_weights = {} goes with other weights of the model than its own",
                       shortened(init.dump())),
           "save it by PEFT with path_initial_model_for_weight_conversion, which makes it an "
           "adapter of the model as it is");
  }
  AdapterConfig config;
  const auto number = [&](const char* key) {
    const auto at = json.find(key);
    if (at == json.end() || !at->is_number()) refuse(fmt::format("{} is no number", key));
    return at->get<double>();
  };
  const double rank = number("r");
  if (!(rank >= 1.0 && rank <= kMostRank && rank == std::floor(rank))) {
    refuse(fmt::format("r = {} is no rank", rank), "it is a whole number, 1 or more");
  }
  config.rank = static_cast<std::int64_t>(rank);
  config.alpha = number("lora_alpha");
  if (json.contains("lora_dropout")) config.dropout = number("lora_dropout");
  if (!(config.dropout >= 0.0 && config.dropout < 1.0)) {
    refuse(fmt::format("lora_dropout = {} is no share to drop", config.dropout),
           "it is 0 or more, and less than 1");
  }
  const auto flag = [&](const char* key) {
    const auto at = json.find(key);
    if (at == json.end() || at->is_null()) return false;
    if (!at->is_boolean()) {
      refuse(fmt::format("{} = {} is not true or false", key, shortened(at->dump())));
    }
    return at->get<bool>();
  };
  config.is_rank_stabilized = flag("use_rslora");
  config.are_in_out = flag("fan_in_fan_out");
  const auto base = json.find("base_model_name_or_path");
  if (base != json.end() && base->is_string()) config.base = base->get<std::string>();
  return config;
}

}  // namespace

std::string adapter_config_text(const AdapterConfig& config) {
  const Json json = {{"peft_type", "LORA"},
                     {"task_type", "CAUSAL_LM"},
                     {"base_model_name_or_path", config.base},
                     {"r", config.rank},
                     {"lora_alpha", config.alpha},
                     {"lora_dropout", config.dropout},
                     {"use_rslora", config.is_rank_stabilized},
                     {"target_modules", config.targets},
                     {"fan_in_fan_out", config.are_in_out},
                     {"bias", "none"},
                     {"modules_to_save", nullptr},
                     {"init_lora_weights", true},
                     {"inference_mode", true}};
  return json.dump(2) + "\n";
}

bool has_adapters(const fs::path& folder) {
  std::error_code error;
  return fs::is_regular_file(folder / kAdapterConfigFile, error);
}

AdapterFolder::AdapterFolder(const fs::path& folder) : path_(folder) {
  if (!has_adapters(folder)) {
    throw Error(ErrorCode::data,
                fmt::format("{} has no {}: not a folder with adapters", folder.string(),
                            kAdapterConfigFile),
                "name a folder that PEFT or a run with [lora] wrote");
  }
  config_ = read_config(folder / kAdapterConfigFile);
  const fs::path file = folder / kAdapterFile;
  std::error_code error;
  if (!fs::exists(file, error)) {
    const bool has_pickle = fs::exists(folder / "adapter_model.bin", error);
    throw Error(ErrorCode::data, fmt::format("{} has no {}", folder.string(), kAdapterFile),
                has_pickle ? "its adapters are in adapter_model.bin; save them as safetensors first"
                           : "copy the whole folder again");
  }
  tensors_ = std::make_shared<SafetensorsFile>(file);
}

}  // namespace heddle
