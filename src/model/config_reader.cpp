#include "model/config_reader.h"

#include <cmath>

#include "base/error.h"
#include "base/json.h"

namespace heddle {

ConfigReader::ConfigReader(const Json& config, std::string where)
    : config_(config), where_(std::move(where)) {
  if (!config_.is_object()) refuse("is not a JSON object");
}

void ConfigReader::refuse(const std::string& message, const std::string& hint) const {
  throw Error(ErrorCode::data, where_ + ": " + message, hint);
}

const Json* ConfigReader::find(const std::string& key) const {
  const auto at = config_.find(key);
  return at == config_.end() || at->is_null() ? nullptr : &*at;
}

bool ConfigReader::has(const std::string& key) const { return find(key) != nullptr; }

std::int64_t ConfigReader::size(const std::string& key) const {
  if (!has(key)) refuse(key + " is missing");
  return size_or(key, 0);
}

std::int64_t ConfigReader::size_or(const std::string& key, std::int64_t fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_number_integer() || value->get<std::int64_t>() <= 0) {
    refuse(fmt::format("{} = {} is not a positive integer", key, value->dump()));
  }
  if (value->get<std::int64_t>() > kLargestSize) {
    refuse(fmt::format("{} = {} is larger than any model has", key, value->dump()));
  }
  return value->get<std::int64_t>();
}

double ConfigReader::number_or(const std::string& key, double fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_number() || !std::isfinite(value->get<double>())) {
    refuse(fmt::format("{} = {} is not a number", key, value->dump()));
  }
  return value->get<double>();
}

bool ConfigReader::flag_or(const std::string& key, bool fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) refuse(fmt::format("{} = {} is not true or false", key, value->dump()));
  return value->get<bool>();
}

std::string ConfigReader::text_or(const std::string& key, const std::string& fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_string()) refuse(fmt::format("{} = {} is not a string", key, value->dump()));
  return value->get<std::string>();
}

void ConfigReader::require_value(const std::string& key, const Json& only_supported) const {
  const Json* value = find(key);
  if (value == nullptr || *value == only_supported) return;
  refuse(fmt::format("asks for {} = {}, which heddle does not do", key, value->dump()),
         fmt::format("only {} = {} is supported", key, only_supported.dump()));
}

std::string ConfigReader::dropout_asked(const std::vector<std::string>& keys) const {
  std::string asked;
  for (const auto& key : keys) {
    const double p = number_or(key, 0.0);
    if (p < 0.0 || p >= 1.0) refuse(fmt::format("{} = {} is not a probability", key, p));
    if (p > 0.0) asked += fmt::format("{}{} = {}", asked.empty() ? "" : ", ", key, p);
  }
  return asked;
}

void ConfigReader::refuse_sliding_window() const {
  // Qwen keeps a sliding_window value beside use_sliding_window = false: only the flag counts
  // there.
  const bool has_flag = has("use_sliding_window");
  const bool uses = has_flag ? flag_or("use_sliding_window", false) : has("sliding_window");
  if (uses) {
    refuse("asks for sliding-window attention, which heddle does not do",
           "set sliding_window to null if the model was not trained with one");
  }
  if (const Json* types = find("layer_types")) {
    if (!types->is_array()) refuse("layer_types is not a list");
    for (const Json& type : *types) {
      if (type != "full_attention") {
        refuse(fmt::format("asks for a layer of type {}, which heddle does not do", type.dump()));
      }
    }
  }
}

RopeSpec ConfigReader::rope(std::int64_t head_dim, double rotated_by_default) const {
  RopeSpec spec;
  spec.theta = number_or("rope_theta", number_or("rotary_emb_base", 10000.0));
  double rotated = number_or("rotary_pct", number_or("partial_rotary_factor", rotated_by_default));
  const Json* scaling = has("rope_parameters") ? find("rope_parameters") : find("rope_scaling");
  if (scaling != nullptr) {
    const ConfigReader keys(*scaling, where_ + ": rope_parameters");
    spec.theta = keys.number_or("rope_theta", spec.theta);
    rotated = keys.number_or("partial_rotary_factor", rotated);
    const std::string type = keys.text_or("rope_type", keys.text_or("type", "default"));
    if (type == "linear") {
      spec.scaling = RopeSpec::Scaling::linear;
    } else if (type == "llama3") {
      spec.scaling = RopeSpec::Scaling::llama3;
      spec.low_freq_factor = keys.number_or("low_freq_factor", 1.0);
      spec.high_freq_factor = keys.number_or("high_freq_factor", 4.0);
      spec.original_positions = keys.number_or("original_max_position_embeddings", 8192.0);
      if (spec.high_freq_factor <= spec.low_freq_factor) {
        keys.refuse("high_freq_factor must be larger than low_freq_factor");
      }
    } else if (type != "default") {
      keys.refuse(fmt::format("asks for rope_type \"{}\", which heddle does not do", type),
                  "supported: default, linear, llama3");
    }
    spec.factor = keys.number_or("factor", 1.0);
  }
  if (spec.factor <= 0.0 || spec.theta <= 0.0) refuse("rope theta and factor must be positive");
  if (rotated <= 0.0 || rotated > 1.0) refuse("the rotated part of a head must be in (0, 1]");
  spec.dims = static_cast<std::int64_t>(static_cast<double>(head_dim) * rotated);
  if (spec.dims < 2 || spec.dims % 2 != 0) {
    refuse(fmt::format("{} rotated dimensions of a head of {}: must be even and at least 2",
                       spec.dims, head_dim));
  }
  return spec;
}

}  // namespace heddle
