#include "engine/memory_plan.h"

#include "engine/engine_testing.h"

namespace heddle {
namespace {

struct Plan {
  const char* name;
  const char* model;
  std::int64_t sequences, seq_len;
  int microbatches;
  bool recompute;
  std::int64_t loss_chunk;
};

void PrintTo(const Plan& plan, std::ostream* out) { *out << plan.name; }

const Plan kPlans[] = {
    {"Gpt2", "gpt2", 2, 17, 1, false, 512},
    {"Gpt2Recomputed", "gpt2", 2, 17, 1, true, 512},
    {"GptNeox", "gpt-neox", 1, 32, 2, false, 16},
    {"GptNeoxRecomputed", "gpt-neox", 3, 9, 1, true, 10},
    {"Llama", "llama", 3, 20, 1, false, 512},
    {"LlamaAccumulating", "llama", 1, 20, 4, false, 7},
    {"LlamaRecomputedAccumulating", "llama", 2, 20, 3, true, 7},
    {"Qwen2", "qwen2", 2, 13, 1, false, 512},
    {"Qwen3", "qwen3", 1, 31, 2, false, 512},
    {"Qwen3Recomputed", "qwen3", 2, 16, 2, true, 8},
};

class MemoryPlanOf : public testing::TestWithParam<Plan> {};

TEST_P(MemoryPlanOf, IsWhatAStepTakes) {
  const Plan& plan = GetParam();
  const BuildOptions options{
      .positions = plan.seq_len, .recompute_blocks = plan.recompute, .loss_chunk = plan.loss_chunk};
  const MemoryPlan predicted = plan_training_memory(
      reference_spec(plan.model), options, plan.sequences, plan.seq_len, plan.microbatches);
  Training training(plan.model, options);
  std::vector<MicroBatch> batches;
  for (int i = 0; i < plan.microbatches; ++i) {
    batches.push_back(training.batch(plan.sequences, plan.seq_len, static_cast<std::uint64_t>(i)));
    batches.back().first_key =
        training.memory().zeros({plan.sequences, plan.seq_len}, DType::i32, MemoryTag::data);
  }
  for (std::int64_t step = 1; step <= 2; ++step) {
    training.step().run(batches, {.lr = 1e-3, .step = step}, 1.0);
  }
  const MemoryStats measured = training.memory().stats();
  for (int tag = 0; tag < kMemoryTags; ++tag) {
    const auto at = static_cast<std::size_t>(tag);
    EXPECT_EQ(predicted.at_peak[at], measured.at_peak[at]) << name_of(static_cast<MemoryTag>(tag));
  }
  EXPECT_EQ(predicted.peak, measured.peak);
  EXPECT_EQ(predicted.reserved, measured.reserved);
}

INSTANTIATE_TEST_SUITE_P(Table, MemoryPlanOf, testing::ValuesIn(kPlans),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(MemoryPlan, OfRecomputedBlocksIsSmaller) {
  const auto peak = [](bool recompute) {
    return plan_training_memory(reference_spec("llama"),
                                {.positions = 256, .recompute_blocks = recompute}, 4, 256, 1)
        .peak;
  };
  EXPECT_LT(peak(true), peak(false));
}

TEST(MemoryPlan, CountsWhatAttentionsGradientsTakeOnAGpu) {
  const ModelSpec spec = reference_spec("llama");
  const auto workspace = [&](DType dtype, bool deterministic) {
    return plan_step(spec, {.dtype = dtype, .positions = 64}, single_rank_plan(spec), 0,
                     {.sequences = 2, .seq_len = 64},
                     {.device = {Device::Kind::cuda, 0}, .deterministic = deterministic})
        .memory.at_peak[static_cast<std::size_t>(MemoryTag::workspace)];
  };
  // All scores' gradients in bf16, or dq, lse and delta in f32.
  const std::int64_t rows = 2 * spec.heads * 64;
  const auto scores = static_cast<std::size_t>(2 * rows * 64);
  const auto sums = static_cast<std::size_t>(4 * rows * (spec.head_dim + 2));
  EXPECT_EQ(workspace(DType::bf16, true) + sums, workspace(DType::bf16, false) + scores);
  EXPECT_EQ(workspace(DType::f32, true), workspace(DType::f32, false));  // our own kernels
  EXPECT_GE(workspace(DType::bf16, false), sums);
}

TEST(MemoryPlan, DoesNotGrowWithAccumulationExceptForItsData) {
  const auto activations = [](int microbatches) {
    return plan_training_memory(reference_spec("llama"), {.positions = 64}, 2, 64, microbatches)
        .at_peak[static_cast<std::size_t>(MemoryTag::activations)];
  };
  EXPECT_EQ(activations(1), activations(8));
}

}  // namespace
}  // namespace heddle
