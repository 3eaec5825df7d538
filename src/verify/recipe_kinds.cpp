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

RecipeShare share_of_rank(const Mesh& mesh) { return {.part = mesh.coord(Axis::dp)}; }

constexpr std::array kKinds = {
    RecipeKind{"adamw", "ranks", configure_ranks, share_of_rank},
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
