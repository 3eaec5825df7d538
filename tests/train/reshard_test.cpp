#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/reader.h"
#include "model/shift_mixer.h"
#include "support/temporary_folder.h"
#include "train/saving.h"
#include "train/small_rank.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

constexpr int kSaved = 2, kAfter = 5;

const std::array<TestMesh, 15>& meshes() {
  static const std::array<TestMesh, 15> all = {{
      {"one", 1, {}},
      {"dp2", 2, {.zero = 0}},
      {"dp2_zero1", 2, {.zero = 1}},
      {"dp2_zero2", 2, {.zero = 2}},
      {"dp4_zero3", 4, {.zero = 3}},
      {"tp2_sequence", 2, {.tp = 2, .sequence = true}},
      {"tp4", 4, {.tp = 4}},
      {"pp2_vocabulary", 2, {.pp = 2, .vocabulary = VocabularyPlacement::pipeline}},
      {"pp2_zbv", 2, {.pp = 2, .schedule = Pipeline::zb_v}},
      {"tp2_pp2_replicated", 4, {.tp = 2, .pp = 2, .vocabulary = VocabularyPlacement::replicated}},
      {"dp2_tp2_pp2_zero3_vhalf",
       8,
       {.tp = 2, .pp = 2, .zero = 3, .sequence = true, .schedule = Pipeline::v_half}},
      {"dp2_pp3_zero2_interleaved",
       6,
       {.pp = 3, .zero = 2, .schedule = Pipeline::interleaved, .chunks = 2}},
      {"cp2_ulysses", 2, {.cp = 2, .context = ContextMethod::ulysses}},
      {"cp3_lightseq_zero3", 3, {.cp = 3, .context = ContextMethod::lightseq, .zero = 3}},
      {"dp2_cp2_pp2_ring_zero2",
       8,
       {.pp = 2, .cp = 2, .context = ContextMethod::ring, .zero = 2, .schedule = Pipeline::zb_h1}},
  }};
  return all;
}

class Reshard : public testing::TestWithParam<std::size_t> {
 protected:
  static void SetUpTestSuite() {
    std::string name = (fs::temp_directory_path() / "heddle-reshard-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    for (const TestMesh& mesh : meshes()) save(mesh);
    run_ranks(1, [](World& world) {
      Rank rank(meshes().front(), world);
      initialize(rank.model().store(), 3, rank.stream());
      for (int step = 0; step < kSaved + kAfter; ++step) expected_.push_back(rank.train(step));
    });
  }
  static void TearDownTestSuite() { fs::remove_all(folder_); }

  static void save(const TestMesh& mesh) {
    run_ranks(mesh.ranks, [&](World& world) {
      Rank rank(mesh, world);
      initialize(rank.model().store(), 3, rank.stream());
      for (int step = 0; step < kSaved; ++step) rank.train(step);
      Saving saving({.root = folder_ / mesh.name, .identity = {}}, rank.model(), world);
      saving.begin({.step = kSaved});
      saving.finish();
    });
  }

  static std::vector<double> resume(const TestMesh& saved, const TestMesh& mesh) {
    std::vector<double> losses;
    run_ranks(mesh.ranks, [&](World& world) {
      Rank rank(mesh, world);
      const auto checkpoint = open_latest(folder_ / saved.name);
      restore_state(*checkpoint, rank.model(), MissingStates::are_refused, rank.stream());
      const RunState state = run_state_of(checkpoint->manifest());
      for (int i = 0; i < kAfter; ++i) {
        const double loss = rank.train(state.step + i);
        if (world.rank() == 0) losses.push_back(loss);
      }
    });
    return losses;
  }

  static inline fs::path folder_;
  static inline std::vector<double> expected_;
};

TEST_P(Reshard, EveryOtherMeshContinuesWithTheLossesOfOneRank) {
  const TestMesh& saved = meshes()[GetParam()];
  for (const TestMesh& mesh : meshes()) {
    const auto losses = resume(saved, mesh);
    ASSERT_EQ(losses.size(), static_cast<std::size_t>(kAfter));
    for (int i = 0; i < kAfter; ++i) {
      EXPECT_NEAR(losses[static_cast<std::size_t>(i)],
                  expected_[static_cast<std::size_t>(kSaved + i)], 1e-5)
          << saved.name << " resumed by " << mesh.name << ", step " << i;
    }
  }
}

const TestMesh& mesh_named(std::string_view name) {
  return *std::ranges::find(meshes(), name, &TestMesh::name);
}

/// Saved on one mesh and resumed on another: the losses of one rank.
void expect_resharded(const OptimizerConfig& optimizer, const ModelSpec& spec,
                      const TestMesh& divided, const TestMesh& copied) {
  const TemporaryFolder folder;
  std::vector<double> expected, losses;
  run_ranks(1, [&](World& world) {
    Rank rank(meshes().front(), world, optimizer, spec);
    initialize(rank.model().store(), 3, rank.stream());
    for (int step = 0; step < kSaved + kAfter; ++step) expected.push_back(rank.train(step));
  });
  run_ranks(divided.ranks, [&](World& world) {
    Rank rank(divided, world, optimizer, spec);
    initialize(rank.model().store(), 3, rank.stream());
    for (int step = 0; step < kSaved; ++step) rank.train(step);
    Saving saving({.root = folder.path(), .identity = {}}, rank.model(), world);
    saving.begin({.step = kSaved});
    saving.finish();
  });
  run_ranks(copied.ranks, [&](World& world) {
    Rank rank(copied, world, optimizer, spec);
    restore_state(*open_latest(folder.path()), rank.model(), MissingStates::are_refused,
                  rank.stream());
    for (int i = 0; i < kAfter; ++i) {
      const double loss = rank.train(kSaved + i);
      if (world.rank() == 0) losses.push_back(loss);
    }
  });
  ASSERT_EQ(losses.size(), static_cast<std::size_t>(kAfter));
  for (std::size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(losses[i], expected[kSaved + i], 1e-4) << "step " << i;
  }
}

/// By default from one that divides everything to one that holds key heads several times.
void expect_resharded(const OptimizerConfig& optimizer, const ModelSpec& spec,
                      std::string_view saved = "dp2_tp2_pp2_zero3_vhalf",
                      std::string_view resumed = "tp4") {
  expect_resharded(optimizer, spec, mesh_named(saved), mesh_named(resumed));
}

TEST(ReshardedStates, OfEveryOptimizerContinueOnAnotherMesh) {
  expect_resharded(SgdConfig{.momentum = 0.9, .nesterov = true}, small_spec());
  expect_resharded(MuonConfig{}, small_spec());
}

TEST(ReshardedStates, OfEveryOptimizerContinueOnOtherRanksOfCp) {
  for (const OptimizerConfig& optimizer :
       {OptimizerConfig(SgdConfig{.momentum = 0.9}), OptimizerConfig(MuonConfig{})}) {
    expect_resharded(optimizer, small_spec(), "cp3_lightseq_zero3", "one");
    expect_resharded(optimizer, small_spec(), "tp4", "dp2_cp2_pp2_ring_zero2");
    expect_resharded(optimizer, small_spec(), "dp2_cp2_pp2_ring_zero2", "cp2_ulysses");
  }
}

/// A mixer that is not attention, with parameters of three dimensions (tests/model/shift_mixer.h).
TEST(ReshardedStates, OfAKindOfBlockThatOnlyATestHasContinueOnAnotherMesh) {
  expect_resharded(AdamWConfig{}, with_shift_mixers(small_spec()));
  expect_resharded(MuonConfig{}, with_shift_mixers(small_spec()));
}

TEST(ReshardedStates, OfExpertsContinueOnAnotherMesh) {
  const ModelSpec spec = model_spec(Json::parse(R"({"model_type": "mixtral", "hidden_size": 16,
      "intermediate_size": 24, "num_hidden_layers": 4, "num_attention_heads": 4,
      "num_key_value_heads": 2, "vocab_size": 50, "num_local_experts": 4,
      "max_position_embeddings": 32, "output_router_logits": true})"),
                                    "config");
  const TestMesh by_expert{"dp4_ep2_zero3", 4, {.ep = 2, .zero = 3}},
      over_tp{"tp2_ep2", 2, {.tp = 2, .ep = 2}},
      in_parts{"dp4_ep2_etp2_zero1", 4, {.ep = 2, .etp = 2, .zero = 1}},
      gathered{"tp2_pp2_etp2", 4, {.tp = 2, .pp = 2, .etp = 2, .ep_exchange = "r=0"}};
  expect_resharded(AdamWConfig{}, spec, by_expert, mesh_named("tp2_sequence"));
  expect_resharded(AdamWConfig{}, spec, mesh_named("dp2_tp2_pp2_zero3_vhalf"), over_tp);
  expect_resharded(AdamWConfig{}, spec, over_tp, by_expert);
  expect_resharded(AdamWConfig{}, spec, by_expert, in_parts);
  expect_resharded(AdamWConfig{}, spec, in_parts, gathered);
  expect_resharded(AdamWConfig{}, spec, gathered, mesh_named("one"));
  expect_resharded(MuonConfig{}, spec, "dp2_tp2_pp2_zero3_vhalf", "tp4");
  expect_resharded(MuonConfig{}, spec, in_parts, by_expert);
}

INSTANTIATE_TEST_SUITE_P(AllPairs, Reshard, testing::Range<std::size_t>(0, meshes().size()),
                         [](const auto& info) { return std::string(meshes()[info.param].name); });

}  // namespace
}  // namespace heddle
