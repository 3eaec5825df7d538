// Runs with adapters, and with frozen tensors, on meshes and on one rank: the same numbers. Axis
// cp, whose shares of tokens verify_mesh does not compare, is in lora_recipe_test.

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "engine/expert_files.h"
#include "model/config_testing.h"
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

/// With a shared expert, whose adapters are all that experts have.
Json shared_expert() {
  return with(small_config("heddle_moe"), {{"num_experts", 4},
                                           {"n_shared_experts", 1},
                                           {"num_attention_heads", 4},
                                           {"num_key_value_heads", 2},
                                           {"vocab_size", 53},
                                           {"max_position_embeddings", 32},
                                           {"first_k_dense_replace", 1}});
}

const ParallelRequest kExpertMeshes[] = {{.dp = 2, .ep = 2},
                                         {.dp = 1, .tp = 2, .ep = 2},
                                         {.dp = 1, .tp = 2, .ep = 2, .sequence = true},
                                         {.dp = 2, .tp = 2, .ep = 2, .etp = 2, .zero = 1}};

std::set<std::string> adapter_names(const ModelSpec& spec, const ParallelRequest& request) {
  std::set<std::string> names;
  std::mutex mutex;
  run_ranks(static_cast<int>(request.ranks()), [&](World& world) {
    Memory memory;
    const ParallelPlan plan = make_plan(spec, request, world.size(), 16);
    const Mesh mesh(plan.mesh, world.all());
    Model model(spec, {.positions = 16}, plan, mesh, ParamStore::Purpose::training, memory);
    const std::lock_guard lock(mutex);
    for (const Parameter* parameter : model.store().parameters()) {
      if (!parameter->is_adapter) continue;
      for (const auto& part : parameter->parts) names.insert(part.name);
    }
  });
  return names;
}

TEST(TunedExperts, HaveTheSameAdaptersOnEveryMesh) {
  ModelSpec spec = spec_of(shared_expert());
  spec.tuning.lora = LoraSpec{.rank = 3, .alpha = 3.0};
  const auto one = adapter_names(spec, {.dp = 1});
  EXPECT_TRUE(std::ranges::any_of(
      one, [](const auto& name) { return name.find("1.mlp.shared_experts.up") != name.npos; }));
  for (const ParallelRequest& request : kExpertMeshes) {
    EXPECT_EQ(adapter_names(spec, request), one);
  }
}

/// Where tp ranks share tokens, also such as they do not divide.
TEST(TunedExperts, TrainAsOnOneRank) {
  const TemporaryFolder folder;
  Memory memory;
  const Json model = shared_expert();
  write(random_weights(spec_of(model), memory), folder.path() / "model");
  write_file_atomically(real_file_system(), folder.path() / "model" / "config.json", model.dump());
  for (const double dropout : {0.0, 0.5}) {
    config::RunConfig config = small_run(folder.path());
    config.model.path = folder.path() / "model";
    config.data.seq_len = 15;
    config.train.tokens_per_step = 4 * 15;
    config.lora.rank = 3;
    config.lora.dropout = dropout;
    for (const ParallelRequest& request : kExpertMeshes) {
      const MeshReport report = compare_mesh(config, request);
      EXPECT_TRUE(report.ok) << dropout << " " << to_json(report).dump(1);
    }
  }
}

}  // namespace
}  // namespace heddle
