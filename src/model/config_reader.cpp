#include "model/config_reader.h"

#include <cmath>

#include "base/error.h"
#include "base/json.h"
#include "base/strings.h"

namespace heddle {
namespace {

std::string shown(const Json& value) { return shortened(value.dump()); }

}  // namespace

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

bool ConfigReader::mentions(const std::string& key) const { return config_.contains(key); }

std::optional<ConfigReader> ConfigReader::section(const std::string& key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  return ConfigReader(*value, where_ + ": " + key);
}

std::int64_t ConfigReader::size(const std::string& key) const {
  if (!has(key)) refuse(key + " is missing");
  return size_or(key, 0);
}

std::int64_t ConfigReader::size_or(const std::string& key, std::int64_t fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_number_integer() || value->get<std::int64_t>() <= 0) {
    refuse(fmt::format("{} = {} is not a positive integer", key, shown(*value)));
  }
  if (value->get<std::int64_t>() > kLargestSize) {
    refuse(fmt::format("{} = {} is larger than any model has", key, shown(*value)));
  }
  return value->get<std::int64_t>();
}

std::optional<std::int64_t> ConfigReader::size_by(const std::vector<std::string>& keys) const {
  std::string first;
  for (const std::string& key : keys) {
    if (!has(key)) continue;
    if (first.empty()) {
      first = key;
    } else if (size(key) != size(first)) {
      refuse(fmt::format("{} = {} and {} = {} mean the same and differ", first, size(first), key,
                         size(key)),
             "remove one of them");
    }
  }
  return first.empty() ? std::nullopt : std::optional(size(first));
}

double ConfigReader::number(const std::string& key) const {
  if (!has(key)) refuse(key + " is missing");
  return number_or(key, 0.0);
}

double ConfigReader::number_or(const std::string& key, double fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_number() || !std::isfinite(value->get<double>())) {
    refuse(fmt::format("{} = {} is not a number", key, shown(*value)));
  }
  return value->get<double>();
}

bool ConfigReader::flag_or(const std::string& key, bool fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) refuse(fmt::format("{} = {} is not true or false", key, shown(*value)));
  return value->get<bool>();
}

std::string ConfigReader::text_or(const std::string& key, const std::string& fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_string()) refuse(fmt::format("{} = {} is not a string", key, shown(*value)));
  return value->get<std::string>();
}

void ConfigReader::require_value(const std::string& key, const Json& only_supported) const {
  const Json* value = find(key);
  if (value == nullptr || *value == only_supported) return;
  refuse(fmt::format("asks for {} = {}, which heddle does not do", key, shown(*value)),
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

}  // namespace heddle
