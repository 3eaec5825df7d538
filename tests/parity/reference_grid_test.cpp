#include <gtest/gtest.h>

#include <algorithm>
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

/// A third of the project's own references that fit, in turn, so that the whole grid takes little
/// time and every model sees meshes of every kind; and all of those beside the checkout.
std::vector<fs::path> models_for(std::size_t mesh) {
  const ParallelRequest& request = mesh_cases()[mesh].request;
  const auto own = fitting(reference_folder() / "models", request);
  std::vector<fs::path> models;
  for (std::size_t i = 0; i < own.size(); ++i) {
    if (i % 3 == mesh % std::min<std::size_t>(3, own.size())) models.push_back(own[i]);
  }
  for (const char* name : {"llama", "gpt2", "qwen2", "llama3-scaled-tied", "gpt-neox"}) {
    const fs::path folder = shared_folder() / "fixtures" / "models" / name;
    if (!fs::exists(folder)) continue;
    if (fits(read_model_spec(folder / "config.json"), request)) models.push_back(folder);
  }
  return models;
}

class ReferenceGrid : public testing::TestWithParam<std::size_t> {};

TEST_P(ReferenceGrid, Holds) {
  const MeshCase& mesh = mesh_cases()[GetParam()];
  const auto models = models_for(GetParam());
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

INSTANTIATE_TEST_SUITE_P(Parity, ReferenceGrid, testing::Range(std::size_t{0}, mesh_cases().size()),
                         [](const auto& info) { return name_of(mesh_cases()[info.param]); });

TEST(MeshCases, AreAtLeastSixtyDifferentMeshesOfTwoToEightRanks) {
  std::set<std::string> names;
  for (const MeshCase& mesh : mesh_cases()) {
    names.insert(name_of(mesh));
    EXPECT_GE(mesh.ranks(), 2) << name_of(mesh);
    EXPECT_LE(mesh.ranks(), 8) << name_of(mesh);
  }
  EXPECT_EQ(names.size(), mesh_cases().size());
  EXPECT_GE(names.size(), 60U);
}

}  // namespace
}  // namespace heddle
