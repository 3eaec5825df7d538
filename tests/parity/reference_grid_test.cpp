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

/// The project's own references, and those beside the checkout where they are there.
std::vector<fs::path> reference_models() {
  std::vector<fs::path> folders;
  for (const auto& entry : fs::directory_iterator(reference_folder() / "models")) {
    folders.push_back(entry.path());
  }
  std::ranges::sort(folders);
  for (const char* name : {"llama", "gpt2", "qwen2", "llama3-scaled-tied", "gpt-neox"}) {
    const fs::path folder = shared_folder() / "fixtures" / "models" / name;
    if (fs::exists(folder)) folders.push_back(folder);
  }
  return folders;
}

class ReferenceGrid : public testing::TestWithParam<MeshCase> {};

TEST_P(ReferenceGrid, HoldsForEveryModelThatFits) {
  int models = 0;
  for (const fs::path& folder : reference_models()) {
    if (!fits(read_model_spec(folder / "config.json"), GetParam().request)) continue;
    ++models;
    ReferenceReport report;
    run_ranks(GetParam().ranks(), [&](World& world) {
      const ReferenceReport own = verify_reference(
          folder, {.recompute = GetParam().recompute, .parallel = GetParam().request}, world);
      if (world.rank() == 0) report = own;
    });
    EXPECT_TRUE(report.ok()) << folder << ": " << to_json(report).dump(1);
  }
  if (models == 0) GTEST_SKIP() << "no reference here has the heads or layers for this mesh";
}

INSTANTIATE_TEST_SUITE_P(Parity, ReferenceGrid, testing::ValuesIn(mesh_cases()),
                         [](const auto& info) { return name_of(info.param); });

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
