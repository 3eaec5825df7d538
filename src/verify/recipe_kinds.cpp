#include "verify/recipe_kinds.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace heddle {
namespace {

/// Data-parallel ranks are the recipe's.
void configure_ranks(const Json& recipe, RecipeRun& run) {
  ParallelRequest& parallel = run.config.parallel;
  const auto ranks = static_cast<int>(recipe_number(recipe, "ranks"));
  if (parallel.dp != 0 && parallel.dp != ranks) {
    fail(ErrorCode::usage,
         "parallel.dp = {} is not the {} ranks of the recipe; leave it out, and give the recipe's "
         "ranks times those of the mesh inside them with --ranks",
         parallel.dp, ranks);
  }
  parallel.dp = ranks;
}

void configure_onebit(const Json& recipe, RecipeRun& run) {
  configure_ranks(recipe, run);
  const ParallelRequest& parallel = run.config.parallel;
  if (parallel.cp > 1 || parallel.tp > 1) {
    fail(ErrorCode::usage, "parallel.{} is not in the recipe: {}; divide its ranks over pp",
         parallel.cp > 1 ? "cp" : "tp",
         parallel.cp > 1
             ? "each rank of cp compresses what it sends, and the recipe has only its own"
             : "each rank of tp has a scale for its slice, and the recipe one for a tensor");
  }
  config::OptimConfig& optim = run.config.optim;
  optim.name = planner::Updates::onebit_adam;
  optim.freeze_step = static_cast<std::int64_t>(recipe_number(recipe, "freeze_step"));
  optim.freeze_mask = false;  // rows without a gradient are moved by the sign of their momentum
  run.weights_limit = 5e-3;
}

/// The model is frozen; what trains are the adapters in a folder beside it, in PEFT's form.
void configure_lora(const Json& recipe, RecipeRun& run) {
  configure_ranks(recipe, run);
  run.config.lora = {};
  run.config.lora.path = run.config.model.path / "adapter";
}

RecipeShare share_of_rank(const Mesh& mesh) { return {.part = mesh.coord(Axis::dp)}; }

/// Sites are the recipe's; the mesh of the settings is that of each.
void configure_sites(const Json& recipe, RecipeRun& run) {
  ParallelRequest& parallel = run.config.parallel;
  const auto whole = [&](const char* name) {
    return static_cast<int>(recipe_number(recipe, name));
  };
  if (parallel.sites != 1 && parallel.sites != whole("sites")) {
    fail(ErrorCode::usage, "parallel.sites = {} are not the {} sites of the recipe; leave it out",
         parallel.sites, whole("sites"));
  }
  parallel.sites = whole("sites");
  run.config.outer = {.every = whole("every"),
                      .fragments = whole("fragments"),
                      .delay = whole("delay"),
                      .mix = recipe_number(recipe, "mix"),
                      .codec = recipe.value("codec", std::string("none")),
                      .lr = recipe_number(recipe, "outer_lr"),
                      .momentum = recipe_number(recipe, "outer_momentum"),
                      .feedback = {}};
  if (run.config.outer.codec != "none") run.weights_limit = 5e-3;
}

RecipeShare share_of_site(const Mesh& mesh) {
  return {.part = mesh.coord(Axis::site),
          .replica = mesh.coord(Axis::dp),
          .replicas = mesh.size(Axis::dp)};
}

constexpr std::array kKinds = {
    RecipeKind{"adamw", "ranks", configure_ranks, share_of_rank},
    RecipeKind{"onebit-adam", "ranks", configure_onebit, share_of_rank},
    RecipeKind{"lora", "ranks", configure_lora, share_of_rank},
    RecipeKind{"diloco", "sites", configure_sites, share_of_site},
};

}  // namespace

double recipe_number(const Json& recipe, std::string_view name) {
  const auto found = recipe.find(std::string(name));
  if (found == recipe.end() || !found->is_number()) {
    fail(ErrorCode::data, "recipe.json has no number \"{}\"", name);
  }
  return found->get<double>();
}

const RecipeKind& recipe_kind(const Json& recipe, const std::string& file) {
  const auto found = recipe.is_object() ? recipe.find("kind") : recipe.end();
  if (!recipe.is_object() || found == recipe.end() || !found->is_string()) {
    fail(ErrorCode::data, "{} has no \"kind\"", file);
  }
  const auto name = found->get<std::string>();
  const auto kind = std::ranges::find(kKinds, name, &RecipeKind::name);
  if (kind != kKinds.end()) return *kind;
  std::vector<std::string> names;
  for (const RecipeKind& known : kKinds) names.push_back(fmt::format("\"{}\"", known.name));
  throw Error(ErrorCode::data,
              fmt::format("{}: kind \"{}\" is not one of {}", file, name, fmt::join(names, ", ")));
}

}  // namespace heddle
