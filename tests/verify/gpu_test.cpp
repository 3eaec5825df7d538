// What training computes on a GPU against the references of PyTorch, and against the CPU. Skipped
// where there is no GPU.

#include <gtest/gtest.h>

#include "base/json.h"
#include "checkpoint/catalog.h"
#include "checkpoint/reader.h"
#include "comm/staged/staged_backend.h"
#include "comm/threads/thread_world.h"
#include "engine/memory_plan.h"
#include "engine/shared_blocks.h"
#include "engine/train_step.h"
#include "model/config_testing.h"
#include "model/registry.h"
#include "ops/attention.h"
#include "ops/elementwise.h"
#include "support/temporary_folder.h"
#include "tensor/transfer.h"
#include "train/saving.h"
#include "verify/optimizer_cases.h"
#include "verify/reference.h"
#include "verify/shared_files.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;
constexpr Device kGpu{Device::Kind::cuda, 0};

class Gpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  }
  static std::vector<fs::path> references() {
    std::vector<fs::path> folders;
    for (const auto& entry : fs::directory_iterator(reference_folder() / "models")) {
      folders.push_back(entry.path());
    }
    return folders;
  }
};

/// In bf16 a token may take the other one of two experts with next to equal scores: its logits are
/// then others, and in a small batch those of all by some percent; losses are not.
void expect_to_hold(const ReferenceReport& report, const fs::path& folder, DType dtype,
                    double most_of_logits = 2.5e-2) {
  const bool may_choose_others =
      dtype == DType::bf16 && read_model_spec(folder / "config.json").experts.has_value();
  if (may_choose_others && report.logits_rel > 2e-2) {
    EXPECT_LT(report.logits_rel, most_of_logits) << folder;
    EXPECT_LT(report.loss_abs, 1e-2) << folder;
    EXPECT_LT(report.train_loss_abs, 3e-2) << folder;
    return;
  }
  EXPECT_TRUE(report.ok()) << folder << ": " << to_json(report).dump(1);
}

TEST_F(Gpu, ReferencesHoldInFloat32AndInBf16) {
  for (const fs::path& folder : references()) {
    // More of its tokens choose others.
    const double most_of_logits = folder.filename() == "heddle-moe" ? 0.1 : 2.5e-2;
    for (const DType dtype : {DType::f32, DType::bf16}) {
      run_ranks(1, [&](World& world) {
        expect_to_hold(verify_reference(folder, {.device = kGpu, .dtype = dtype}, world), folder,
                       dtype, most_of_logits);
      });
    }
  }
}

TEST_F(Gpu, ReferencesHoldOnMeshesThatTheHostJoins) {
  const std::vector<ParallelRequest> meshes = {
      {.dp = 2, .zero = 1}, {.dp = 2, .zero = 3}, {.tp = 2, .sequence = true}, {.pp = 2}};
  for (const ParallelRequest& mesh : meshes) {
    run_ranks(2, [&](World& host) {
      World world(std::make_unique<Communicator>(through_host(host.all().backend(), kGpu),
                                                 host.all().shared_flight(), "world"));
      const auto report = verify_reference(reference_folder() / "models" / "llama",
                                           {.device = kGpu, .parallel = mesh}, world);
      EXPECT_TRUE(report.ok()) << to_json(report).dump(1);
    });
  }
}

/// A model in training whose steps can be saved and continued, on any device.
class Trained {
 public:
  Trained(Device device, DType dtype, const OptimizerConfig& optimizer = {},
          const BuildOptions& options = {}, const ModelSpec& spec = llama())
      : memory_(device),
        stream_(1, device),
        model_(spec, filled(options, dtype), ParamStore::Purpose::training, memory_),
        optimizer_(make_optimizer(optimizer, model_.store())),
        step_(model_, *optimizer_, stream_, memory_) {}

  static ModelSpec llama() {
    return read_model_spec(reference_folder() / "models" / "llama" / "config.json");
  }
  static BuildOptions filled(BuildOptions options, DType dtype) {
    options.dtype = dtype;
    options.positions = kSeqLen;
    return options;
  }

  void start() { initialize(model_.store(), 5, stream_); }
  double step(int number) {
    Memory host;
    const auto ids = [&](int shift) {
      const Tensor tensor = host.alloc({2, kSeqLen}, DType::i32, MemoryTag::data);
      std::int32_t i = 0;
      for (auto& id : tensor.host<std::int32_t>()) {
        id = static_cast<std::int32_t>((number * 31 + (i++ + shift) * 7) % model_.spec().vocab);
      }
      return tensor;
    };
    const std::vector<MicroBatch> batches = {plain_batch(ids(0), ids(1), 0, host)};
    result_ = step_.run(batches, {.lr = 1e-3, .step = number + 1}, 1.0);
    return result_.loss;
  }
  /// Of the last step.
  const std::vector<double>& expert_load() const { return result_.expert_load; }
  const StepResult& result() const { return result_; }
  Parameter& parameter(std::string_view name) {
    for (Parameter* p : model_.store().parameters()) {
      if (p->parts.front().name == name) return *p;
    }
    throw Error(ErrorCode::usage, fmt::format("no parameter {}", name), "name another");
  }
  void fill(std::string_view name, double value) {
    ops::fill(parameter(name).value, value, stream_);
  }
  std::vector<float> values(std::string_view name) {
    const Tensor values = to_host(parameter(name).value, stream_);
    return {values.host<float>().begin(), values.host<float>().end()};
  }
  void save(const fs::path& folder, int steps) {
    run_ranks(1, [&](World& world) {
      Saving saving({.root = folder, .identity = {}}, model_, world);
      saving.begin({.step = steps});
      saving.finish();
    });
  }
  void load(const fs::path& folder) {
    restore_state(*open_latest(folder), model_, MissingStates::are_refused, stream_);
  }
  MemoryStats memory() const { return memory_.stats(); }

  static constexpr std::int64_t kSeqLen = 24;

 private:
  Memory memory_;
  Stream stream_;
  Model model_;
  const std::unique_ptr<Optimizer> optimizer_;
  TrainStep step_;
  StepResult result_;
};

TEST_F(Gpu, FourAndSixStepsAreTenBitForBit) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const TemporaryFolder folder;
    Trained whole(kGpu, dtype), first(kGpu, dtype), second(kGpu, dtype);
    whole.start();
    first.start();
    for (int i = 0; i < 4; ++i) EXPECT_EQ(first.step(i), whole.step(i));
    first.save(folder.path(), 4);
    second.load(folder.path());
    for (int i = 4; i < 10; ++i) EXPECT_EQ(second.step(i), whole.step(i)) << "step " << i;
  }
}

TEST_F(Gpu, SgdAndMuonTakeTenStepsOfTorch) {
  const auto check = [](const OptimizerCase& of, DType dtype, double limit) {
    run_ranks(1, [&](World& world) {
      const TenSteps steps = ten_steps(of, {.dp = 1}, world, kGpu, dtype);
      EXPECT_LE(steps.loss, dtype == DType::f32 ? limit : 3e-2) << of.name;
      EXPECT_LE(steps.tensor, limit) << of.name << ": " << steps.worst;
    });
  };
  check(kSgdNesterov, DType::f32, 1e-5);
  check(kSgdDampened, DType::f32, 1e-5);
  check(kMuonInFloat32, DType::f32, 1e-4);
  check(kMuon, DType::f32, 1e-3);
  // Layers and products in bf16, where torch's layers compute in float32.
  check(kSgdNesterov, DType::bf16, 1e-2);
  check(kMuon, DType::bf16, 1e-2);
}

TEST_F(Gpu, MuonOnMeshesThatTheHostJoinsIsTorchs) {
  for (const ParallelRequest& mesh :
       {ParallelRequest{.dp = 2, .zero = 1}, {.dp = 2, .zero = 3}, {.dp = 1, .tp = 2}}) {
    run_ranks(2, [&](World& host) {
      World world(std::make_unique<Communicator>(through_host(host.all().backend(), kGpu),
                                                 host.all().shared_flight(), "world"));
      const TenSteps steps = ten_steps(kMuonInFloat32, mesh, world, kGpu);
      EXPECT_LE(steps.tensor, 1e-4) << steps.worst;
    });
  }
}

TEST_F(Gpu, EveryOptimizerResumesBitForBitAndHoldsWhatWasPlanned) {
  for (const OptimizerConfig& optimizer :
       {OptimizerConfig{SgdConfig{.momentum = 0.9, .nesterov = true}},
        OptimizerConfig{MuonConfig{}}}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const TemporaryFolder folder;
      Trained whole(kGpu, dtype, optimizer), second(kGpu, dtype, optimizer);
      whole.start();
      for (int i = 0; i < 3; ++i) whole.step(i);
      const ModelSpec spec = Trained::llama();
      const StepPlan plan = plan_step(
          spec, {.dtype = dtype, .positions = Trained::kSeqLen}, single_rank_plan(spec), 0,
          {.sequences = 2, .seq_len = Trained::kSeqLen}, {.device = kGpu, .optimizer = optimizer});
      const std::size_t beside = dtype == DType::bf16
                                     ? ops::gradient_sum_bytes(2, Trained::kSeqLen, spec.heads,
                                                               spec.kv_heads, spec.head_dim)
                                     : 0;
      EXPECT_EQ(whole.memory().peak + beside, plan.memory.peak);
      whole.save(folder.path(), 3);
      second.load(folder.path());
      for (int i = 3; i < 6; ++i) EXPECT_EQ(second.step(i), whole.step(i)) << "step " << i;
    }
  }
}

TEST_F(Gpu, ACheckpointOfTheCpuContinuesThereAndBack) {
  const TemporaryFolder to_gpu, back;
  Trained cpu({}, DType::f32), gpu(kGpu, DType::f32), again({}, DType::f32);
  cpu.start();
  for (int i = 0; i < 3; ++i) cpu.step(i);
  cpu.save(to_gpu.path(), 3);
  gpu.load(to_gpu.path());
  for (int i = 3; i < 6; ++i) EXPECT_NEAR(gpu.step(i), cpu.step(i), 1e-4);
  gpu.save(back.path(), 6);
  again.load(back.path());
  for (int i = 6; i < 9; ++i) EXPECT_NEAR(again.step(i), cpu.step(i), 1e-4);
}

const BuildOptions kRecomputed{.recompute_blocks = true},
    kInChunks{.recompute_blocks = true, .mlp_tokens = 20};

TEST_F(Gpu, RecomputationGivesTheSameBits) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Trained plain(kGpu, dtype), recomputed(kGpu, dtype, {}, kRecomputed);
    plain.start();
    recomputed.start();
    for (int i = 0; i < 4; ++i) EXPECT_EQ(recomputed.step(i), plain.step(i)) << "step " << i;
  }
}

TEST_F(Gpu, MlpsInChunksTakeTheSameSteps) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Trained whole(kGpu, dtype), in_chunks(kGpu, dtype, {}, kInChunks);
    whole.start();
    in_chunks.start();
    const double limit = dtype == DType::f32 ? 1e-4 : 3e-2;
    for (int i = 0; i < 4; ++i) EXPECT_NEAR(in_chunks.step(i), whole.step(i), limit);
  }
}

/// Blocks are timed on the device, told one step later, and without what a rank waits for another.
TEST_F(Gpu, ARankThatComesLateToExchangesIsSlowAndTheOneThatWaitsIsNot) {
  std::vector<std::vector<double>> told;
  run_ranks(2, [&](World& host) {
    World world(std::make_unique<Communicator>(through_host(host.all().backend(), kGpu),
                                               host.all().shared_flight(), "world"));
    SharedBlocks blocks(world, kGpu);
    blocks.step().time_blocks(make_stream_clock(blocks.stream()));
    for (int step = 0; step < 5; ++step) {
      if (step == 3 && world.rank() == 1) blocks.be_late(std::chrono::milliseconds(50));
      const std::vector<double> seconds = blocks.block_seconds();
      if (world.rank() == 0) told.push_back(seconds);
    }
  });
  EXPECT_EQ(told[0], (std::vector{0.0, 0.0}));
  const std::vector<double> usual = told[3], late = told[4];
  EXPECT_GT(usual[0], 0.0);
  EXPECT_GT(usual[1], 0.0);
  EXPECT_LT(usual[1], 0.05);
  EXPECT_GE(late[1], 0.1);  // at least two exchanges
  EXPECT_LT(late[0], 0.5 * late[1]);
}

TEST_F(Gpu, MemoryIsWhatWasPlanned) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const BuildOptions& options : {BuildOptions{}, kRecomputed, kInChunks}) {
      Trained trained(kGpu, dtype, {}, options);
      trained.start();
      for (int i = 0; i < 2; ++i) trained.step(i);
      const ModelSpec spec = Trained::llama();
      const StepPlan plan =
          plan_step(spec, Trained::filled(options, dtype), single_rank_plan(spec), 0,
                    {.sequences = 2, .seq_len = Trained::kSeqLen}, {.device = kGpu});
      const std::size_t beside = dtype == DType::bf16
                                     ? ops::gradient_sum_bytes(2, Trained::kSeqLen, spec.heads,
                                                               spec.kv_heads, spec.head_dim)
                                     : 0;
      EXPECT_EQ(trained.memory().peak + beside, plan.memory.peak);
      EXPECT_EQ(trained.memory().reserved + beside, plan.memory.reserved);
    }
  }
}

/// With experts, a shared one, a dense layer and both losses of the router.
ModelSpec with_experts(const char* method = "greedy") {
  ModelSpec spec = spec_of(with(small_config("heddle_moe"), {{"num_hidden_layers", 3},
                                                             {"num_attention_heads", 4},
                                                             {"hidden_size", 64},
                                                             {"moe_intermediate_size", 40},
                                                             {"n_shared_experts", 1},
                                                             {"topk_method", method},
                                                             {"n_group", 3},
                                                             {"topk_group", 2},
                                                             {"first_k_dense_replace", 1}}));
  spec.experts->loss = {.balance = 0.02, .z = 0.001};
  return spec;
}

using GpuExperts = Gpu;

TEST_F(GpuExperts, TakeTheStepsOfTheCpu) {
  Trained gpu(kGpu, DType::f32, {}, {}, with_experts()),
      cpu(Device{}, DType::f32, {}, {}, with_experts());
  gpu.start();
  cpu.start();
  for (int i = 0; i < 4; ++i) {
    EXPECT_NEAR(gpu.step(i), cpu.step(i), 1e-4) << "step " << i;
    EXPECT_EQ(gpu.expert_load(), cpu.expert_load()) << "step " << i;
  }
}

TEST_F(GpuExperts, TakeTheStepsOfTheCpuWithEveryGate) {
  std::vector<std::pair<std::string, ModelSpec>> gates;
  const auto add = [&](const std::string& name, const auto& change) {
    change(gates.emplace_back(name, with_experts()).second.experts->gating);
  };
  for (const Balance balance :
       {Balance::first_choices, Balance::shares, Balance::sequence, Balance::global}) {
    add(fmt::format("balance {}", static_cast<int>(balance)),
        [&](GateRule& gate) { gate.balance = balance; });
  }
  for (const ops::Victims victims : {ops::Victims::late_slots, ops::Victims::late_tokens,
                                     ops::Victims::unsure, ops::Victims::low_scores}) {
    for (const bool renormalizes : {false, true}) {
      add(fmt::format("capacity {}, {}", static_cast<int>(victims), renormalizes),
          [&](GateRule& gate) {
            gate.capacity = {.factor = 0.75, .victims = victims, .renormalizes = renormalizes};
          });
    }
  }
  ModelSpec& biased = gates.emplace_back("bias", with_experts("noaux_tc")).second;
  biased.experts->bias_rate = 0.01;
  // With a large eps a step follows the gradient, not its sign, which rounding may turn: else a
  // choice between two scores that are next to equal falls differently after a step or two.
  const OptimizerConfig optimizer = AdamWConfig{.eps = 1e-2};
  for (const auto& [name, spec] : gates) {
    Trained gpu(kGpu, DType::f32, optimizer, {}, spec),
        cpu(Device{}, DType::f32, optimizer, {}, spec);
    gpu.start();
    cpu.start();
    for (int i = 0; i < 3; ++i) {
      EXPECT_NEAR(gpu.step(i), cpu.step(i), 1e-4) << name << ", step " << i;
      EXPECT_EQ(gpu.expert_load(), cpu.expert_load()) << name << ", step " << i;
    }
  }
}

/// Sigmoids make numbers of logits that are infinite, and the loss stays one.
TEST_F(GpuExperts, NameTheRouterWhoseLogitsAreNotFinite) {
  ModelSpec spec = with_experts("noaux_tc");
  spec.experts->loss = {};
  for (const Device device : {kGpu, Device{}}) {
    Trained trained(device, DType::f32, {}, {}, spec);
    trained.start();
    trained.step(0);
    EXPECT_EQ(trained.result().bad_router, -1);
    EXPECT_TRUE(trained.result().is_finite);
    trained.fill("model.layers.2.mlp.gate.weight", 3e38);
    const std::vector<float> before = trained.values("model.embed_tokens.weight");
    trained.step(1);
    EXPECT_EQ(trained.result().bad_router, 1);  // of the two layers that have one
    EXPECT_FALSE(trained.result().is_finite);
    EXPECT_EQ(trained.values("model.embed_tokens.weight"), before);
  }
}

TEST_F(GpuExperts, RefuseGatesThatAreOfTheCpu) {
  using Change = std::function<void(ExpertsSpec&)>;
  const Change changes[] = {
      [](ExpertsSpec& experts) { experts.gating.choice = GateRule::Choice::sinkhorn; },
      [](ExpertsSpec& experts) { experts.gating.choice = GateRule::Choice::expert_choice; },
      [](ExpertsSpec& experts) { experts.gating.noise = ops::Noise::gumbel; },
      [](ExpertsSpec& experts) { experts.cosine_width = 8; },
      [](ExpertsSpec& experts) {
        experts.gating.capacity = {.factor = 1.0, .victims = ops::Victims::random};
      }};
  for (const Change& change : changes) {
    ModelSpec spec = with_experts();
    change(*spec.experts);
    EXPECT_THROW(Trained(kGpu, DType::f32, {}, {}, spec), Error);
  }
}

TEST_F(GpuExperts, RepeatThemselvesAndHoldWhatWasPlanned) {
  const ModelSpec spec = with_experts();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Trained first(kGpu, dtype, {}, {}, spec), again(kGpu, dtype, {}, {}, spec),
        recomputed(kGpu, dtype, {}, kRecomputed, spec);
    for (Trained* trained : {&first, &again, &recomputed}) trained->start();
    for (int i = 0; i < 4; ++i) {
      const double loss = first.step(i);
      EXPECT_EQ(again.step(i), loss) << "step " << i;
      EXPECT_EQ(recomputed.step(i), loss) << "step " << i;
    }
    const StepPlan plan =
        plan_step(spec, Trained::filled({}, dtype), single_rank_plan(spec), 0,
                  {.sequences = 2, .seq_len = Trained::kSeqLen}, {.device = kGpu});
    const std::size_t beside =
        dtype == DType::bf16
            ? ops::gradient_sum_bytes(2, Trained::kSeqLen, spec.heads, spec.kv_heads, spec.head_dim)
            : 0;
    EXPECT_EQ(first.memory().peak + beside, plan.memory.peak);
  }
}

TEST_F(GpuExperts, HoldSharedReferences) {
  const fs::path models = shared_folder() / "fixtures" / "models";
  if (!fs::exists(models)) GTEST_SKIP() << "no fixtures at " << models;
  const std::vector<ParallelRequest> meshes = {{.dp = 2, .zero = 1},
                                               {.dp = 2, .zero = 3},
                                               {.tp = 2, .sequence = true},
                                               {.pp = 2},
                                               {.dp = 2, .ep = 2},
                                               {.dp = 2, .ep = 2, .zero = 3},
                                               {.tp = 2, .ep = 2, .sequence = true}};
  for (const char* name : {"mixtral", "olmoe", "qwen3-moe"}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const bool recompute : {false, true}) {
        run_ranks(1, [&](World& world) {
          const ReferenceOptions options{.device = kGpu, .dtype = dtype, .recompute = recompute};
          expect_to_hold(verify_reference(models / name, options, world), models / name, dtype);
        });
      }
    }
    for (const ParallelRequest& mesh : meshes) {
      run_ranks(2, [&](World& host) {
        World world(std::make_unique<Communicator>(through_host(host.all().backend(), kGpu),
                                                   host.all().shared_flight(), "world"));
        const auto report =
            verify_reference(models / name, {.device = kGpu, .parallel = mesh}, world);
        EXPECT_TRUE(report.ok()) << name << ": " << to_json(report).dump(1);
      });
    }
  }
}

}  // namespace
}  // namespace heddle
