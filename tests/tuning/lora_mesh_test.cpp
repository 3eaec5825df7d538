// Runs with adapters, and with frozen tensors, on meshes and on one rank: the same numbers. Axis
// cp, whose shares of tokens verify_mesh does not compare, is in lora_recipe_test.

#include <gtest/gtest.h>

#include "tuning/tuned_model.h"

namespace heddle {
namespace {

struct MeshOfRun {
  std::string name;
  ParallelRequest mesh;
  bool recomputes = false;
};

void PrintTo(const MeshOfRun& one, std::ostream* out) { *out << one.name; }

const MeshOfRun kMeshes[] = {
    {"Dp4Zero1", {.dp = 4, .zero = 1}},
    {"Dp2Zero3", {.dp = 2, .zero = 3}, true},
    {"Tp2", {.dp = 1, .tp = 2}},
    {"Tp4Sequence", {.dp = 1, .tp = 4, .sequence = true}},
    {"Pp2Vocabulary", {.dp = 1, .pp = 2, .vocabulary = VocabularyPlacement::pipeline}},
    {"Pp2ReplicatedVocabulary",
     {.dp = 2, .tp = 2, .pp = 2, .zero = 2, .vocabulary = VocabularyPlacement::replicated}},
    {"Dp2Tp2Zero2", {.dp = 2, .tp = 2, .zero = 2}},
    {"Tp2Pp2ZeroBubble",
     {.dp = 2, .tp = 2, .pp = 2, .zero = 3, .sequence = true, .schedule = Pipeline::zb_h1}},
};

class TunedMesh : public testing::TestWithParam<MeshOfRun> {
 protected:
  void expect_equal(config::RunConfig config) {
    if (GetParam().recomputes) config.train.recompute = config::Recompute::block;
    const MeshReport report = compare_mesh(config, GetParam().mesh);
    EXPECT_TRUE(report.ok) << to_json(report).dump(1);
  }
  const TemporaryFolder folder_;
};

TEST_P(TunedMesh, WithAdaptersIsOneRank) {
  config::RunConfig config = small_run(folder_.path());
  config.lora.path = small_llama() / "adapter";
  expect_equal(config);
}

TEST_P(TunedMesh, WithNewAdaptersIsOneRank) {
  config::RunConfig config = small_run(folder_.path());
  config.lora.rank = 5;
  config.lora.targets = {"k_proj", "o_proj", "gate_proj"};
  expect_equal(config);
}

TEST_P(TunedMesh, WithDropoutIsOneRank) {
  config::RunConfig config = small_run(folder_.path());
  config.lora.path = small_llama() / "adapter";
  config.lora.dropout = 0.5;
  config.run.seed = 3;
  expect_equal(config);
}

TEST_P(TunedMesh, WithFrozenTensorsIsOneRank) {
  config::RunConfig config = small_run(folder_.path());
  config.train.freeze = {"model.embed_tokens.weight", "model.layers.0.*", "*norm.weight"};
  expect_equal(config);
}

INSTANTIATE_TEST_SUITE_P(Mesh, TunedMesh, testing::ValuesIn(kMeshes),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace heddle
