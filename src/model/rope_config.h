#pragma once

#include <optional>

#include "model/config_reader.h"

namespace heddle {

/// How the configs of a family say what rotates.
struct RopeKeys {
  std::int64_t head_dim = 0, max_positions = 0;
  std::string theta = "rope_theta";  ///< of the config itself
  double theta_by_default = 10000.0;
  /// The part of a head that rotates, in the config itself; empty: the family rotates whole heads.
  std::string rotated = {};
  double rotated_by_default = 1.0;
  /// original_max_position_embeddings where the config does not say; absent: its positions.
  std::optional<double> original_by_default = {};
  bool pairs_neighbours = false;  ///< RopeSpec::pairs_neighbours
  /// Of kinds that are scaled the family has longrope alone, also by its older names.
  bool has_longrope_only = false;
};

/// The rotary embedding of a config.json, resolved as transformers 5 does: a `rope_scaling` that is
/// not empty replaces `rope_parameters`, what is in there goes before keys of the config itself,
/// and kinds without `original_max_position_embeddings` take the model's positions. What
/// transformers rejects or passes over in silence is refused.
RopeSpec read_rope(const ConfigReader& config, const RopeKeys& family);

}  // namespace heddle
