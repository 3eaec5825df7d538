#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/json_value.h"
#include "comm/world.h"
#include "config/run_config.h"
#include "tensor/device.h"
#include "tensor/dtype.h"

namespace heddle {

/// How training by a folder's recipe and by us differ.
struct RecipeReport {
  std::string kind;           ///< as recipe.json says
  double train_loss_abs = 0;  ///< of the worst step
  double trained_rel = 0;  ///< the norm of the difference over the reference's, of the worst tensor
  std::string trained_worst = {};
  std::optional<double> outer_rel = {};  ///< the same of outer weights, where there are some
  std::string outer_worst = {};
  double loss_limit = 1e-4, weights_limit = 1e-3;
  int ranks = 1;
  std::string mesh = {};
  DType dtype = DType::f32;

  bool ok() const {
    return train_loss_abs <= loss_limit && trained_rel <= weights_limit &&
           outer_rel.value_or(0.0) <= weights_limit;
  }
};

struct RecipeOptions {
  int threads = 1;     ///< of each rank
  Device device = {};  ///< of this rank
};

/// Whether the folder has a recipe.json.
bool has_recipe(const std::filesystem::path& folder);

/// The ranks that play it: one for each of the recipe's, times those that the mesh of `settings`
/// divides it over.
int recipe_ranks(const std::filesystem::path& folder, const config::RunConfig& settings);

/// Trains as recipe.json of a folder says and compares. Beside it lie a model (config.json,
/// model.safetensors) and reference.safetensors with `train.input_ids` and `train.labels` (targets
/// themselves) of [steps, parts, rows, S], `train.loss`, and `trained.PARAM`. A part is a rank or a
/// site of the recipe; each is played by one data-parallel rank, which the mesh of `settings` may
/// divide further, or by a site of that mesh. Of sites, `trained.PARAM` is the first's, and
/// `outer.PARAM` is compared too. `settings` are a run's, to which the recipe adds its own. Every
/// rank of `world` calls this and gets the same report.
RecipeReport verify_recipe(const std::filesystem::path& folder, const config::RunConfig& settings,
                           const RecipeOptions& options, World& world);

JsonValue to_json(const RecipeReport& report);

}  // namespace heddle
