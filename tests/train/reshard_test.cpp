#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/rng.h"
#include "checkpoint/reader.h"
#include "comm/threads/thread_world.h"
#include "engine/train_step.h"
#include "model/registry.h"
#include "support/temporary_folder.h"
#include "train/run_state.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSequences = 4, kSeqLen = 12, kVocab = 50;
constexpr int kSaved = 2, kAfter = 5;

/// Small enough for many meshes, large enough for three pipeline ranks; a vocabulary that tp does
/// not divide, and fewer key heads than tp ranks.
ModelSpec spec() {
  return model_spec(Json::parse(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
      "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 4,
      "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 50,
      "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "tie_word_embeddings": true})"),
                    "config");
}

struct TestMesh {
  const char* name;
  int ranks;
  ParallelRequest request;
};

const std::array<TestMesh, 12>& meshes() {
  static const std::array<TestMesh, 12> all = {{
      {"one", 1, {}},
      {"dp2", 2, {.zero = 0}},
      {"dp2_zero1", 2, {.zero = 1}},
      {"dp2_zero2", 2, {.zero = 2}},
      {"dp4_zero3", 4, {.zero = 3}},
      {"tp2_sequence", 2, {.tp = 2, .sequence = true}},
      {"tp4", 4, {.tp = 4}},
      {"pp2_vocabulary", 2, {.pp = 2, .vocabulary = VocabularyPlacement::pipeline}},
      {"pp2_zbv", 2, {.pp = 2, .schedule = "zb-v"}},
      {"tp2_pp2_replicated", 4, {.tp = 2, .pp = 2, .vocabulary = VocabularyPlacement::replicated}},
      {"dp2_tp2_pp2_zero3_vhalf",
       8,
       {.tp = 2, .pp = 2, .zero = 3, .sequence = true, .schedule = "v-half"}},
      {"dp2_pp3_zero2_interleaved",
       6,
       {.pp = 3, .zero = 2, .schedule = "interleaved", .chunks = 2}},
  }};
  return all;
}

/// One rank of a training run on a mesh.
class Rank {
 public:
  Rank(const TestMesh& mesh, World& world, const OptimizerConfig& optimizer = {})
      : plan_(make_plan(spec(), with(mesh.request, optimizer), world.size(), kSeqLen)),
        mesh_(plan_.mesh, world.all()),
        model_(spec(), {.positions = kSeqLen}, plan_, mesh_, ParamStore::Purpose::training,
               memory_),
        optimizer_(make_optimizer(optimizer, model_.store())),
        step_(model_, *optimizer_, stream_, memory_) {}

  Model& model() { return model_; }
  Memory& memory() { return memory_; }
  Stream& stream() { return stream_; }

  double train(std::int64_t step) {
    const std::int64_t own = kSequences / mesh_.size(Axis::dp);
    std::vector<MicroBatch> batches;
    for (std::int64_t i = 0; i < own; ++i) {
      const auto key =
          static_cast<std::uint64_t>(step * kSequences + mesh_.coord(Axis::dp) * own + i);
      batches.push_back(plain_batch(ids(2 * key), ids(2 * key + 1), 0, memory_));
    }
    return step_.run(batches, {.lr = 1e-2, .step = step + 1}, 1.0).loss;
  }

 private:
  static ParallelRequest with(ParallelRequest request, const OptimizerConfig& optimizer) {
    request.whole_matrices = needs_whole_matrices(optimizer);
    return request;
  }

  Tensor ids(std::uint64_t key) {
    const Tensor made = memory_.alloc({1, kSeqLen}, DType::i32, MemoryTag::data);
    std::uint64_t i = 0;
    for (auto& id : made.host<std::int32_t>()) {
      id = static_cast<std::int32_t>(random_u64(key, i++) % kVocab);
    }
    return made;
  }

  Memory memory_;
  Stream stream_{1};
  ParallelPlan plan_;
  Mesh mesh_;
  Model model_;
  const std::unique_ptr<Optimizer> optimizer_;
  TrainStep step_;
};

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
      save_run(folder_ / mesh.name, {.step = kSaved}, {}, rank.model(), DType::f32,
               {{"config.json", "{}"}}, world, rank.memory(), rank.stream());
    });
  }

  static std::vector<double> resume(const TestMesh& saved, const TestMesh& mesh) {
    std::vector<double> losses;
    run_ranks(mesh.ranks, [&](World& world) {
      Rank rank(mesh, world);
      const auto state = restore_run(*open_latest(folder_ / saved.name), rank.model(),
                                     MissingStates::are_refused, rank.stream());
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

TEST(ReshardedStates, OfEveryOptimizerContinueOnAnotherMesh) {
  const TestMesh &divided = meshes()[10], &copied = meshes()[6];  // by ZeRO and tp; key heads
  for (const OptimizerConfig& optimizer :
       {OptimizerConfig{SgdConfig{.momentum = 0.9, .nesterov = true}},
        OptimizerConfig{MuonConfig{}}}) {
    const TemporaryFolder folder;
    std::vector<double> expected, losses;
    run_ranks(1, [&](World& world) {
      Rank rank(meshes().front(), world, optimizer);
      initialize(rank.model().store(), 3, rank.stream());
      for (int step = 0; step < kSaved + kAfter; ++step) expected.push_back(rank.train(step));
    });
    run_ranks(divided.ranks, [&](World& world) {
      Rank rank(divided, world, optimizer);
      initialize(rank.model().store(), 3, rank.stream());
      for (int step = 0; step < kSaved; ++step) rank.train(step);
      save_run(folder.path(), {.step = kSaved}, {}, rank.model(), DType::f32,
               {{"config.json", "{}"}}, world, rank.memory(), rank.stream());
    });
    run_ranks(copied.ranks, [&](World& world) {
      Rank rank(copied, world, optimizer);
      restore_run(*open_latest(folder.path()), rank.model(), MissingStates::are_refused,
                  rank.stream());
      for (int i = 0; i < kAfter; ++i) {
        const double loss = rank.train(kSaved + i);
        if (world.rank() == 0) losses.push_back(loss);
      }
    });
    for (std::size_t i = 0; i < losses.size(); ++i) {
      EXPECT_NEAR(losses[i], expected[kSaved + i], 1e-4) << "step " << i;
    }
    EXPECT_EQ(losses.size(), static_cast<std::size_t>(kAfter));
  }
}

INSTANTIATE_TEST_SUITE_P(AllPairs, Reshard, testing::Range<std::size_t>(0, 12),
                         [](const auto& info) { return std::string(meshes()[info.param].name); });

}  // namespace
}  // namespace heddle
