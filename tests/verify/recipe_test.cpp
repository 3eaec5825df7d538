#include "verify/recipe.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/error.h"
#include "base/file_system.h"
#include "base/json.h"
#include "comm/threads/thread_world.h"
#include "support/temporary_folder.h"
#include "verify/shared_files.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

/// The ten batches of a model's reference as a recipe of two ranks with one sequence each.
class PlainRecipe {
 public:
  explicit PlainRecipe(const std::string& recipe) {
    fs::copy(reference_folder() / "models" / "llama", folder_.path());
    const fs::path path = folder_.path() / "reference.safetensors";
    const std::string bytes = read_text_file(path);
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof length);
    Json header = parse_json(bytes.substr(sizeof length, length), path.string());
    for (const char* name : {"train.input_ids", "train.labels"}) {
      const Json shape = header[name]["shape"];
      header[name]["shape"] = {shape[0], shape[1], 1, shape[2]};
    }
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const std::uint64_t now = text.size();
    std::string changed(reinterpret_cast<const char*>(&now), sizeof now);
    changed += text + bytes.substr(sizeof length + length);
    write_file_atomically(real_file_system(), path, changed);
    write_file_atomically(real_file_system(), folder_.path() / "recipe.json", recipe);
  }
  const fs::path& folder() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
};

RecipeReport verify(const fs::path& folder, int ranks, const ParallelRequest& parallel = {}) {
  config::RunConfig settings;
  settings.parallel = parallel;
  RecipeReport report;
  run_ranks(ranks, [&](World& world) {
    const auto own = verify_recipe(folder, settings, {}, world);
    if (world.rank() == 0) report = own;
  });
  return report;
}

void expect_error(const fs::path& folder, int ranks, const ParallelRequest& parallel,
                  const std::string& words) {
  try {
    verify(folder, ranks, parallel);
    FAIL() << "no error about " << words;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

TEST(Recipe, OfPlainDataParallelTrainingHoldsOnMeshesInsideItsRanks) {
  const PlainRecipe recipe(R"({"kind": "adamw", "ranks": 2, "lr": 0.001})");
  ASSERT_TRUE(has_recipe(recipe.folder()));
  for (const ParallelRequest& mesh :
       {ParallelRequest{.zero = 1}, ParallelRequest{.zero = 3},
        ParallelRequest{.tp = 2, .sequence = true}, ParallelRequest{.pp = 2}}) {
    const auto report = verify(recipe.folder(), 2 * mesh.tp * mesh.pp, mesh);
    EXPECT_TRUE(report.ok()) << to_json(report).dump(1);
  }
}

TEST(Recipe, WithAnotherRateIsNotTheReference) {
  const PlainRecipe recipe(R"({"kind": "adamw", "ranks": 2, "lr": 0.0011})");
  const auto report = verify(recipe.folder(), 2);
  EXPECT_GT(report.train_loss_abs, report.loss_limit);
  EXPECT_GT(report.trained_rel, report.weights_limit);
  EXPECT_FALSE(report.ok());
}

TEST(Recipe, OfSitesHoldsAlsoOnMeshesInsideThem) {
  const fs::path recipe = reference_folder() / "recipes" / "streaming-diloco";
  for (const auto& [ranks, mesh] : {std::pair(2, ParallelRequest{}),
                                    {4, ParallelRequest{.dp = 2, .zero = 3}},
                                    {4, ParallelRequest{.tp = 2, .sequence = true}},
                                    {4, ParallelRequest{.pp = 2}},
                                    {4, ParallelRequest{.cp = 2, .zero = 1}}}) {
    const auto report = verify(recipe, ranks, mesh);
    EXPECT_TRUE(report.ok() && report.outer_rel) << to_json(report).dump(1);
  }
  expect_error(recipe, 3, {.sites = 3}, "parallel.sites = 3 are not the 2 sites");
}

TEST(Recipe, OfEveryFormOfLocalTrainingHolds) {
  const fs::path recipes = shared_folder() / "fixtures" / "recipes";
  if (!fs::exists(recipes)) GTEST_SKIP() << recipes << " is not here";
  for (const auto& [name, sites] :
       {std::pair("diloco", 2), {"streaming-diloco", 2}, {"streaming-diloco-e3m0", 3}}) {
    const auto report = verify(recipes / name, sites);
    EXPECT_TRUE(report.ok() && report.outer_rel) << name << to_json(report).dump(1);
  }
}

TEST(Recipe, SaysWhatItDoesNotUnderstand) {
  expect_error(PlainRecipe(R"({"kind": "telepathy", "ranks": 2, "lr": 0.001})").folder(), 2, {},
               "kind \"telepathy\" is not one of \"adamw\", \"onebit-adam\"");
  expect_error(PlainRecipe(R"({"ranks": 2, "lr": 0.001})").folder(), 2, {}, "has no \"kind\"");
  expect_error(PlainRecipe(R"({"kind": "adamw", "ranks": 2})").folder(), 2, {}, "\"lr\"");
  expect_error(PlainRecipe(R"({"kind": "adamw", "ranks": 3, "lr": 0.001})").folder(), 3, {},
               "for ranks = 3 it has to be [steps, 3, rows, length]");
  expect_error(PlainRecipe(R"({"kind": "adamw", "ranks": 2, "lr": 0.001})").folder(), 2, {.dp = 1},
               "parallel.dp = 1 is not the 2 ranks of the recipe");
  expect_error(PlainRecipe(R"({"kind": "adamw", "ranks": 2, "lr": 0.001})").folder(), 3, {},
               "but 3 are started");
}

const ParallelRequest kInsideARank[] = {{.zero = 0},
                                        {.zero = 1},
                                        {.pp = 2, .zero = 0},
                                        {.pp = 2, .zero = 1, .schedule = Pipeline::zb_v}};

TEST(Recipe, OfOnebitAdamHoldsOnThreeRanksThatDivideNoTensor) {
  for (const ParallelRequest& mesh : kInsideARank) {
    const auto report = verify(reference_folder() / "recipes" / "onebit-adam", 3 * mesh.pp, mesh);
    EXPECT_TRUE(report.ok()) << to_json(report).dump(1);
    EXPECT_LT(report.trained_rel, 1e-5) << "no sign is another one";
  }
}

TEST(Recipe, OfTheSharedFixturesHold) {
  const fs::path folder = shared_folder() / "fixtures" / "recipes" / "onebit-adam";
  if (!fs::exists(folder)) GTEST_SKIP() << "no fixture at " << folder;
  for (const ParallelRequest& mesh : kInsideARank) {
    const auto report = verify(folder, 2 * mesh.pp, mesh);
    EXPECT_TRUE(report.ok()) << to_json(report).dump(1);
  }
}

TEST(Recipe, TellsHowManyRanksPlayIt) {
  const auto ranks = [](const char* name, const ParallelRequest& inside) {
    config::RunConfig settings;
    settings.parallel = inside;
    return recipe_ranks(reference_folder() / "recipes" / name, settings);
  };
  EXPECT_EQ(ranks("onebit-adam", {}), 3);
  EXPECT_EQ(ranks("onebit-adam", {.pp = 2}), 6);
  EXPECT_EQ(ranks("streaming-diloco", {}), 2);
  EXPECT_EQ(ranks("streaming-diloco", {.dp = 2, .tp = 2}), 8);
}

TEST(Recipe, OfOnebitAdamRefusesMeshesThatCompressOtherwise) {
  const fs::path folder = reference_folder() / "recipes" / "onebit-adam";
  expect_error(folder, 6, {.tp = 2}, "parallel.tp is not in the recipe");
  expect_error(folder, 6, {.cp = 2}, "parallel.cp is not in the recipe");
  expect_error(folder, 3, {.zero = 2}, "parallel.zero = 2 divides them");
}

}  // namespace
}  // namespace heddle
