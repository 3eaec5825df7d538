#include "model/rope_config.h"

#include <fmt/core.h>

#include <cmath>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/strings.h"

namespace heddle {
namespace {

/// `rope_parameters` of newer files, or `rope_scaling` of older ones.
ConfigReader rope_section(const ConfigReader& config) {
  static const Json kNothing = Json::object();
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (auto section = config.section(key); section && !section->json().empty()) return *section;
  }
  return {kNothing, ""};
}

/// transformers reads these keys for other families only. A value that would change nothing may
/// stay.
void refuse_unread(const ConfigReader& config, const std::string& key, const std::string& read_as,
                   double value) {
  if (key == read_as || config.number_or(key, value) == value) return;
  config.refuse(fmt::format("{} = {} would not be read by transformers, which takes {}", key,
                            config.number_or(key, value), value),
                fmt::format("remove {}, or say it as {}", key, read_as));
}

using Scaling = RopeSpec::Scaling;

constexpr std::pair<const char*, Scaling> kKinds[] = {
    {"default", Scaling::none}, {"linear", Scaling::linear},     {"dynamic", Scaling::dynamic},
    {"yarn", Scaling::yarn},    {"longrope", Scaling::longrope}, {"llama3", Scaling::llama3},
};

Scaling kind_of(const ConfigReader& keys, const RopeKeys& family) {
  std::string type = keys.text_or("rope_type", keys.text_or("type", "default"));
  if (family.has_longrope_only && (type == "su" || type == "yarn")) type = "longrope";
  std::string supported;
  for (const auto& [name, kind] : kKinds) {
    const bool has =
        !family.has_longrope_only || kind == Scaling::none || kind == Scaling::longrope;
    if (has && type == name) return kind;
    if (has) supported += (supported.empty() ? "" : ", ") + std::string(name);
  }
  keys.refuse(fmt::format("asks for rope_type \"{}\", which heddle does not do{}", shortened(type),
                          family.has_longrope_only ? " for this family" : ""),
              "supported: " + supported);
}

/// The config's own goes first, alone of all keys: so transformers does when it computes.
double original_positions(const ConfigReader& config, const ConfigReader& keys,
                          const RopeKeys& family) {
  const std::string key = "original_max_position_embeddings";
  const auto positions = static_cast<double>(family.max_positions);
  const double found =
      config.number_or(key, family.original_by_default ? *family.original_by_default
                                                       : keys.number_or(key, positions));
  if (found <= 0.0) keys.refuse(key + " must be positive");
  return found;
}

/// `factor`, or where it is null (for longrope also: absent) what the positions grew by.
double factor_or_growth(const ConfigReader& keys, const RopeKeys& family, double original) {
  return keys.number_or("factor", static_cast<double>(family.max_positions) / original);
}

void read_yarn(const ConfigReader& keys, const RopeKeys& family, RopeSpec& spec) {
  if (!keys.mentions("factor")) keys.refuse("factor is missing");
  spec.factor = factor_or_growth(keys, family, spec.original_positions);
  const auto or_if_zero = [&](const char* key, double fallback) {
    const double value = keys.number_or(key, 0.0);
    return value == 0.0 ? fallback : value;
  };
  spec.beta_fast = or_if_zero("beta_fast", 32.0);
  spec.beta_slow = or_if_zero("beta_slow", 1.0);
  spec.truncates = keys.flag_or("truncate", true);
  const auto mscale = [&](double scale) {
    return spec.factor <= 1.0 ? 1.0 : 0.1 * scale * std::log(spec.factor) + 1.0;
  };
  const double of_some = keys.number_or("mscale", 0.0);
  const double of_all = keys.number_or("mscale_all_dim", 0.0);
  const double usual =
      of_some != 0.0 && of_all != 0.0 ? mscale(of_some) / mscale(of_all) : mscale(1.0);
  spec.attention_factor = keys.number_or("attention_factor", usual);
  if (spec.beta_fast <= 0.0 || spec.beta_slow <= 0.0 || spec.theta <= 1.0) {
    keys.refuse("beta_fast and beta_slow must be positive, and rope_theta above 1");
  }
}

/// One number for each rotated pair.
std::vector<double> factors(const ConfigReader& keys, const std::string& key, std::int64_t pairs) {
  if (!keys.has(key)) keys.refuse(key + " is missing");
  const Json& list = keys.json().at(key);
  std::vector<double> found;
  if (list.is_array()) {
    for (const Json& factor : list) {
      if (factor.is_number() && factor.get<double>() > 0.0) found.push_back(factor.get<double>());
    }
  }
  if (!list.is_array() || found.size() != list.size() || std::ssize(found) != pairs) {
    keys.refuse(fmt::format("{} is not a list of {} positive numbers, one for each rotated pair",
                            key, pairs));
  }
  return found;
}

void read_longrope(const ConfigReader& keys, const RopeKeys& family, RopeSpec& spec) {
  if (spec.original_positions <= 1.0) {
    keys.refuse("longrope needs original_max_position_embeddings above 1");
  }
  spec.factor = factor_or_growth(keys, family, spec.original_positions);
  spec.short_factors = factors(keys, "short_factor", spec.dims / 2);
  spec.long_factors = factors(keys, "long_factor", spec.dims / 2);
  const double usual =
      spec.factor <= 1.0
          ? 1.0
          : std::sqrt(1.0 + std::log(spec.factor) / std::log(spec.original_positions));
  spec.attention_factor = keys.number_or("attention_factor", usual);
}

/// spec.theta and spec.dims have been read.
void read_scaling(const ConfigReader& config, const ConfigReader& keys, const RopeKeys& family,
                  RopeSpec& spec) {
  spec.scaling = kind_of(keys, family);
  if (spec.scaling == Scaling::none) return;
  if (spec.scaling == Scaling::linear) {
    spec.factor = keys.number("factor");
    return;
  }
  if (spec.scaling == Scaling::dynamic) {
    spec.original_positions = static_cast<double>(family.max_positions);
    spec.factor = keys.number("factor");
    if (spec.dims <= 2) keys.refuse("dynamic frequencies need more than one rotated pair");
    return;
  }
  spec.original_positions = original_positions(config, keys, family);
  if (spec.scaling == Scaling::yarn) return read_yarn(keys, family, spec);
  if (spec.scaling == Scaling::longrope) return read_longrope(keys, family, spec);
  spec.factor = keys.number("factor");
  spec.low_freq_factor = keys.number("low_freq_factor");
  spec.high_freq_factor = keys.number("high_freq_factor");
  if (spec.high_freq_factor <= spec.low_freq_factor) {
    keys.refuse("high_freq_factor must be larger than low_freq_factor");
  }
}

}  // namespace

RopeSpec read_rope(const ConfigReader& config, const RopeKeys& family) {
  const ConfigReader keys = rope_section(config);
  for (const auto& [key, value] : keys.json().items()) {
    if (value.is_object()) {
      keys.refuse(fmt::format("\"{}\" holds parameters of one kind of layer", key),
                  "heddle does one rotary embedding for all layers");
    }
  }
  RopeSpec spec;
  spec.theta =
      keys.number_or("rope_theta", config.number_or(family.theta, family.theta_by_default));
  for (const char* key : {"rope_theta", "rotary_emb_base"}) {
    refuse_unread(config, key, family.theta, spec.theta);
  }
  const bool is_partial = !family.rotated.empty();
  const std::string rotated_key = is_partial ? family.rotated : "partial_rotary_factor";
  const double rotated = keys.number_or("partial_rotary_factor",
                                        config.number_or(rotated_key, family.rotated_by_default));
  for (const char* key : {"partial_rotary_factor", "rotary_pct"}) {
    refuse_unread(config, key, rotated_key, rotated);
  }
  if (!is_partial && rotated != 1.0) {
    config.refuse(
        fmt::format("partial_rotary_factor = {}, but models of this family rotate whole heads",
                    rotated),
        "remove it; transformers passes it over");
  }
  if (rotated <= 0.0 || rotated > 1.0) {
    config.refuse("the rotated part of a head must be in (0, 1]");
  }
  spec.dims = static_cast<std::int64_t>(static_cast<double>(family.head_dim) * rotated);
  if (spec.dims < 2 || spec.dims % 2 != 0) {
    config.refuse(fmt::format("{} rotated dimensions of a head of {}: must be even and at least 2",
                              spec.dims, family.head_dim));
  }
  spec.pairs_neighbours = family.pairs_neighbours;
  read_scaling(config, keys, family, spec);
  if (spec.factor <= 0.0 || spec.theta <= 0.0 || spec.attention_factor <= 0.0) {
    config.refuse("rope theta and factors must be positive");
  }
  return spec;
}

}  // namespace heddle
