#pragma once

#include <string_view>

#include "base/json_fwd.h"
#include "config/run_config.h"
#include "mesh/mesh.h"

namespace heddle {

/// What a recipe asks of a run, and how near the run must come to it.
struct RecipeRun {
  config::RunConfig config;
  double weights_limit = 1e-3;
};

/// The sequences of a recipe that a rank trains on: of one part, which replicas may share.
struct RecipeShare {
  int part = 0;
  int replica = 0, replicas = 1;
};

/// A kind of recipe. A new one is an entry of the table in recipe_kinds.cpp.
struct RecipeKind {
  std::string_view name;
  std::string_view parts;  ///< the constant of recipe.json that says how many there are
  /// Puts the recipe's constants into a run's settings. Error(usage) for settings that the recipe
  /// says nothing about.
  void (*configure)(const Json& recipe, RecipeRun& run);
  RecipeShare (*share)(const Mesh& mesh);
};

/// Error(data) that names the file and the kinds there are.
const RecipeKind& recipe_kind(const Json& recipe, const std::string& file);

/// A number of the recipe. Error(data) when it is not there.
double recipe_number(const Json& recipe, std::string_view name);

}  // namespace heddle
