#include "model/rope_config.h"

#include <fmt/core.h>

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

void read_scaling(const ConfigReader& config, const ConfigReader& keys, const RopeKeys& family,
                  RopeSpec& spec) {
  const std::string type = keys.text_or("rope_type", keys.text_or("type", "default"));
  if (type == "default") return;
  if (type == "linear") {
    spec.scaling = RopeSpec::Scaling::linear;
  } else if (type == "llama3") {
    spec.scaling = RopeSpec::Scaling::llama3;
    spec.low_freq_factor = keys.number("low_freq_factor");
    spec.high_freq_factor = keys.number("high_freq_factor");
    // The config's own goes first, alone of all keys: so transformers does when it computes.
    const std::string original = "original_max_position_embeddings";
    spec.original_positions = config.number_or(
        original, keys.number_or(original, static_cast<double>(family.max_positions)));
    if (spec.high_freq_factor <= spec.low_freq_factor) {
      keys.refuse("high_freq_factor must be larger than low_freq_factor");
    }
    if (spec.original_positions <= 0.0) keys.refuse(original + " must be positive");
  } else {
    keys.refuse(fmt::format("asks for rope_type \"{}\", which heddle does not do", shortened(type)),
                "supported: default, linear, llama3");
  }
  spec.factor = keys.number("factor");
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
  read_scaling(config, keys, family, spec);
  if (spec.factor <= 0.0 || spec.theta <= 0.0) {
    config.refuse("rope theta and factor must be positive");
  }
  if (rotated <= 0.0 || rotated > 1.0) {
    config.refuse("the rotated part of a head must be in (0, 1]");
  }
  spec.dims = static_cast<std::int64_t>(static_cast<double>(family.head_dim) * rotated);
  if (spec.dims < 2 || spec.dims % 2 != 0) {
    config.refuse(fmt::format("{} rotated dimensions of a head of {}: must be even and at least 2",
                              spec.dims, family.head_dim));
  }
  return spec;
}

}  // namespace heddle
