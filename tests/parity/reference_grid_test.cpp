#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/json.h"
#include "comm/threads/thread_world.h"
#include "model/registry.h"
#include "parity/mesh_cases.h"
#include "verify/reference.h"
#include "verify/shared_files.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

/// The references in `folder` that fit the mesh, sorted.
std::vector<fs::path> fitting(const fs::path& folder, const ParallelRequest& request) {
  std::vector<fs::path> models;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (fits(read_model_spec(entry.path() / "config.json"), request)) {
      models.push_back(entry.path());
    }
  }
  std::ranges::sort(models);
  return models;
}

/// A fifth of the project's own references that fit, in turn, so that the whole grid takes little
/// time and every model sees meshes of every kind.
std::vector<fs::path> own_models(const ParallelRequest& request, std::size_t turn) {
  const auto own = fitting(reference_folder() / "models", request);
  std::vector<fs::path> models;
  for (std::size_t i = 0; i < own.size(); ++i) {
    if (i % 5 == turn % std::min<std::size_t>(5, own.size())) models.push_back(own[i]);
  }
  return models;
}

/// Those beside the checkout that fit.
std::vector<fs::path> models_beside(const ParallelRequest& request) {
  std::vector<fs::path> models;
  for (const char* name : {"llama", "gpt2", "qwen2", "llama3-scaled-tied", "gpt-neox"}) {
    const fs::path folder = shared_folder() / "fixtures" / "models" / name;
    if (!fs::exists(folder)) continue;
    if (fits(read_model_spec(folder / "config.json"), request)) models.push_back(folder);
  }
  return models;
}

void expect_references(const MeshCase& mesh, const std::vector<fs::path>& models) {
  if (models.empty()) GTEST_SKIP() << "no reference here has the heads or layers for this mesh";
  for (const fs::path& folder : models) {
    ReferenceReport report;
    run_ranks(mesh.ranks(), [&](World& world) {
      const ReferenceReport own =
          verify_reference(folder, {.recompute = mesh.recompute, .parallel = mesh.request}, world);
      if (world.rank() == 0) report = own;
    });
    EXPECT_TRUE(report.ok()) << folder << ": " << to_json(report).dump(1);
  }
}

class ReferenceGrid : public testing::TestWithParam<std::size_t> {};

TEST_P(ReferenceGrid, Holds) {
  const MeshCase& mesh = mesh_cases()[GetParam()];
  auto models = own_models(mesh.request, GetParam());
  for (fs::path& folder : models_beside(mesh.request)) models.push_back(std::move(folder));
  expect_references(mesh, models);
}

INSTANTIATE_TEST_SUITE_P(Parity, ReferenceGrid, testing::Range(std::size_t{0}, mesh_cases().size()),
                         [](const auto& info) { return name_of(mesh_cases()[info.param]); });

class ContextReferenceGrid : public testing::TestWithParam<std::size_t> {};

TEST_P(ContextReferenceGrid, Holds) {
  const MeshCase& mesh = context_cases()[GetParam()];
  auto models = own_models(mesh.request, GetParam());
  EXPECT_FALSE(models.empty());
  const auto beside = models_beside(mesh.request);
  if (!beside.empty()) models.push_back(beside[GetParam() % beside.size()]);
  expect_references(mesh, models);
}

INSTANTIATE_TEST_SUITE_P(Parity, ContextReferenceGrid,
                         testing::Range(std::size_t{0}, context_cases().size()),
                         [](const auto& info) { return name_of(context_cases()[info.param]); });

void expect_different_meshes(const std::vector<MeshCase>& cases, std::size_t least) {
  std::set<std::string> names;
  for (const MeshCase& mesh : cases) {
    names.insert(name_of(mesh));
    EXPECT_GE(mesh.ranks(), 2) << name_of(mesh);
    EXPECT_LE(mesh.ranks(), 8) << name_of(mesh);
  }
  EXPECT_EQ(names.size(), cases.size());
  EXPECT_GE(names.size(), least);
}

/// The project's own references by the meshes of the grids on which they are compared.
TEST(MeshCases, HaveEveryReferenceOnTwentyAndEveryNewFamilyOnTwentyFourMeshes) {
  std::map<fs::path, int> meshes;
  for (const auto* cases : {&mesh_cases(), &context_cases()}) {
    for (std::size_t turn = 0; turn < cases->size(); ++turn) {
      for (const fs::path& model : own_models((*cases)[turn].request, turn)) ++meshes[model];
    }
  }
  const std::set<std::string> new_families = {
      "olmo2", "smollm3", "granite", "glm", "glm4", "phi3", "starcoder2", "gemma2", "gemma3_text"};
  for (const auto& entry : fs::directory_iterator(reference_folder() / "models")) {
    const std::string family = read_model_spec(entry.path() / "config.json").family;
    EXPECT_GE(meshes[entry.path()], new_families.contains(family) ? 24 : 20) << entry.path();
  }
}

/// Windows that are narrower than the references' sequences, alone and beside layers without.
TEST(ContextCases, HaveWindowsWithEveryMethodAndOrder) {
  std::set<ContextMethod> methods;
  std::set<ContextOrder> orders;
  for (std::size_t turn = 0; turn < context_cases().size(); ++turn) {
    const ParallelRequest& request = context_cases()[turn].request;
    for (const fs::path& model : own_models(request, turn)) {
      const std::string name = model.filename();
      if (name != "gemma2" && name != "gemma3" && name != "mistral-window") continue;
      methods.insert(request.context);
      orders.insert(request.context_order);
    }
  }
  EXPECT_EQ(methods.size(), context_method_names().size());
  EXPECT_EQ(orders.size(), context_order_names().size());
}

TEST(MeshCases, AreAtLeastSixtyDifferentMeshesOfTwoToEightRanks) {
  expect_different_meshes(mesh_cases(), 60);
}

TEST(ContextCases, AreAtLeastEightyDifferentMeshesOfTwoToEightRanks) {
  expect_different_meshes(context_cases(), 80);
}

TEST(ContextCases, HaveEveryMethodOrderScheduleStageAndPlaceOfTheVocabulary) {
  std::set<int> sizes, zeros;
  std::set<ContextMethod> methods;
  std::set<ContextOrder> orders;
  std::set<Pipeline> schedules;
  std::set<VocabularyPlacement> vocabularies;
  for (const MeshCase& mesh : context_cases()) {
    const ParallelRequest& request = mesh.request;
    sizes.insert(request.cp);
    zeros.insert(request.zero);
    methods.insert(request.context);
    orders.insert(request.context_order);
    if (request.pp > 1) schedules.insert(request.schedule);
    vocabularies.insert(request.vocabulary);
  }
  EXPECT_EQ(sizes, (std::set{2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(zeros, (std::set{0, 1, 2, 3}));
  EXPECT_EQ(methods.size(), context_method_names().size());
  EXPECT_EQ(orders.size(), context_order_names().size());
  EXPECT_EQ(schedules, (std::set{Pipeline::gpipe, Pipeline::one_f_one_b, Pipeline::interleaved,
                                 Pipeline::zb_h1, Pipeline::zb_v, Pipeline::v_half}));
  EXPECT_EQ(vocabularies.size(), vocabulary_names().size());
}

}  // namespace
}  // namespace heddle
