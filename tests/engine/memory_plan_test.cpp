#include "engine/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/engine_testing.h"
#include "support/source_dir.h"

namespace heddle {
namespace {

struct Plan {
  const char* name;
  const char* model;
  std::int64_t sequences, seq_len;
  int microbatches;
  bool recompute;
  std::int64_t loss_chunk;
  std::int64_t mlp_tokens = BuildOptions{}.mlp_tokens;
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
    {"Gpt2InChunks", "gpt2", 2, 17, 1, true, 512, 10},
    {"GptNeoxInChunks", "gpt-neox", 3, 9, 2, true, 10, 9},
    {"LlamaInChunks", "llama", 1, 37, 2, true, 7, 8},
};

class MemoryPlanOf : public testing::TestWithParam<Plan> {};

TEST_P(MemoryPlanOf, IsWhatAStepTakes) {
  const Plan& plan = GetParam();
  const BuildOptions options{.positions = plan.seq_len,
                             .recompute_blocks = plan.recompute,
                             .mlp_tokens = plan.mlp_tokens,
                             .loss_chunk = plan.loss_chunk};
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

/// Weights, gradients and states are there, activations are not.
TEST(MemoryPlan, LeavesBlocksOutAsAStepDoes) {
  const ModelSpec spec = reference_spec("llama");
  const BatchShape batch{.sequences = 2, .seq_len = 20, .microbatches = 2};
  const auto plan = [&](std::vector<int> left_out) {
    return plan_step(spec, {.positions = batch.seq_len}, single_rank_plan(spec), 0, batch,
                     {.left_out = std::move(left_out)});
  };
  const StepPlan whole = plan({}), without = plan({1});
  EXPECT_EQ(without.before_step, whole.before_step);
  EXPECT_LT(without.memory.kept, whole.memory.kept);
  Training training("llama", {.positions = batch.seq_len});
  training.model().leave_out({1});
  std::vector<MicroBatch> batches;
  for (const std::uint64_t seed : {1, 2}) {
    batches.push_back(training.batch(batch.sequences, batch.seq_len, seed));
    batches.back().first_key =
        training.memory().zeros({batch.sequences, batch.seq_len}, DType::i32, MemoryTag::data);
  }
  for (std::int64_t step = 1; step <= 2; ++step) {
    training.step().run(batches, {.lr = 1e-3, .step = step}, 1.0);
  }
  EXPECT_EQ(without.memory.peak, training.memory().stats().peak);
}

TEST(MemoryPlan, OfRecomputedBlocksIsSmaller) {
  const auto peak = [](bool recompute) {
    return plan_training_memory(reference_spec("llama"),
                                {.positions = 256, .recompute_blocks = recompute}, 4, 256, 1)
        .peak;
  };
  EXPECT_LT(peak(true), peak(false));
}

TEST(MemoryPlan, OfAnMlpInChunksGrowsWithTheTokensAsIfTheMlpWereNarrow) {
  const auto growth = [](std::int64_t widening, std::int64_t mlp_tokens) {
    ModelSpec spec = reference_spec("llama");
    spec.ffn *= widening;
    const auto activations = [&](std::int64_t tokens) {
      const BuildOptions options{
          .positions = tokens, .recompute_blocks = true, .mlp_tokens = mlp_tokens};
      return plan_training_memory(spec, options, 1, tokens, 1)
          .at_peak[static_cast<std::size_t>(MemoryTag::activations)];
    };
    return activations(1024) - activations(512);
  };
  EXPECT_EQ(growth(8, 4), growth(1, 4));
  EXPECT_GT(growth(8, 1024), 2 * growth(1, 1024));
}

/// The length is what must be kept: of each block its input, attention's output and lse.
TEST(MemoryPlan, OfHalfAMillionTokensOfLlama1BFitsOnOneH200) {
  const ModelSpec spec = read_model_spec(source_dir() + "/configs/models/llama3.2-1b.json");
  const std::int64_t tokens = 524288;
  const StepPlace gpu{.device = {Device::Kind::cuda, 0}};
  const MemoryPlan plan =
      plan_step(spec,
                {.dtype = DType::bf16,
                 .positions = tokens,
                 .recompute_blocks = true,
                 .loss_chunk = usual_loss_chunk(spec, gpu.device)},
                single_rank_plan(spec), 0, {.sequences = 1, .seq_len = tokens}, gpu)
          .memory;
  constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
  const double of_blocks =
      static_cast<double>(spec.layers * tokens * (2 * (2 * spec.hidden) + 4 * spec.heads)) / kGib;
  const double kept = static_cast<double>(plan.kept) / kGib;
  EXPECT_NEAR(of_blocks, 65.0, 0.1);
  EXPECT_GT(kept, of_blocks);
  EXPECT_LT(kept, 1.1 * of_blocks);
  EXPECT_LT(static_cast<double>(plan.reserved) / kGib, 125.0);  // of 139
}

TEST(MemoryPlan, CountsWhatAttentionsGradientsTakeOnAGpu) {
  ModelSpec spec = reference_spec("llama");
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
  // Of heads that kernels of Hopper take, exact sums: dq's twice.
  spec.head_dim = 64;
  EXPECT_EQ(workspace(DType::bf16, true),
            workspace(DType::bf16, false) + static_cast<std::size_t>(4 * rows * 64));
}

TEST(MemoryPlan, DoesNotGrowWithAccumulationExceptForItsData) {
  const auto activations = [](int microbatches) {
    return plan_training_memory(reference_spec("llama"), {.positions = 64}, 2, 64, microbatches)
        .at_peak[static_cast<std::size_t>(MemoryTag::activations)];
  };
  EXPECT_EQ(activations(1), activations(8));
}

struct PipelineCase {
  const char* schedule;
  int pp, chunks;
  VocabularyPlacement vocabulary = VocabularyPlacement::tensor;
  double skip = 0.0;
};

std::string name_of(const PipelineCase& pipeline) {
  std::string name = fmt::format("{}_pp{}_x{}", pipeline.schedule, pipeline.pp, pipeline.chunks);
  if (pipeline.vocabulary == VocabularyPlacement::pipeline) name += "_vocabulary";
  if (pipeline.skip > 0.0) name += "_skip";
  std::ranges::replace(name, '-', '_');
  return name;
}

void expect_equal(StepPlan fast, StepPlan whole) {
  for (std::size_t tag = 0; tag < kMemoryTags; ++tag) {
    EXPECT_EQ(fast.memory.at_peak[tag], whole.memory.at_peak[tag])
        << name_of(static_cast<MemoryTag>(tag));
    EXPECT_EQ(fast.before_step[tag], whole.before_step[tag])
        << name_of(static_cast<MemoryTag>(tag));
  }
  EXPECT_EQ(fast.memory.peak, whole.memory.peak);
  EXPECT_EQ(fast.memory.reserved, whole.memory.reserved);
  fast.traffic.with(whole.traffic, [](const char* group, CommCounts& a, CommCounts& b) {
    for (std::size_t op = 0; op < kCommOps; ++op) {
      EXPECT_EQ(a.by_op[op].calls, b.by_op[op].calls) << group;
      EXPECT_EQ(a.by_op[op].payload_bytes, b.by_op[op].payload_bytes) << group;
    }
  });
}

class PlanOfManyMicrobatches : public testing::TestWithParam<PipelineCase> {};

TEST_P(PlanOfManyMicrobatches, IsThatOfTheWholeStep) {
  const PipelineCase& pipeline = GetParam();
  ModelSpec spec = reference_spec("llama");
  spec.layers = 8;
  const BuildOptions options{.positions = 8};
  const int others = pipeline.pp == 1 ? 4 : 2;  // with tp = 2: dp = 2 on one stage, else 1
  for (const int zero : {0, 3}) {
    const ParallelPlan plan = make_plan(spec,
                                        {.tp = zero == 0 ? 2 : 1,
                                         .pp = pipeline.pp,
                                         .zero = zero,
                                         .schedule = pipeline_named(pipeline.schedule),
                                         .chunks = pipeline.chunks,
                                         .skip = pipeline.skip,
                                         .vocabulary = pipeline.vocabulary},
                                        pipeline.pp * others, 8);
    const int period = pipeline.skip > 0.0 ? pipeline.pp * (pipeline.pp - 1) : pipeline.pp;
    const int least = 3 * (pipeline.pp * (pipeline.chunks > 1 ? pipeline.pp + 4 : 4) + 3 * period);
    for (const int microbatches : {least, least + 1, least + pipeline.pp - 1, least + 29}) {
      const BatchShape batch{.sequences = 1, .seq_len = 8, .microbatches = microbatches};
      for (const int rank : {0, pipeline.pp / 2 * others, (pipeline.pp - 1) * others}) {
        SCOPED_TRACE(fmt::format("{} micro-batches, ZeRO {}, rank {}", microbatches, zero, rank));
        expect_equal(plan_step(spec, options, plan, rank, batch),
                     plan_whole_step(spec, options, plan, rank, batch));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Schedules, PlanOfManyMicrobatches,
    testing::ValuesIn({PipelineCase{"1f1b", 1, 1},
                       PipelineCase{"gpipe", 1, 1},
                       PipelineCase{"gpipe", 2, 1},
                       PipelineCase{"gpipe", 4, 1},
                       PipelineCase{"1f1b", 2, 1},
                       PipelineCase{"1f1b", 4, 1},
                       PipelineCase{"1f1b", 8, 1},
                       PipelineCase{"interleaved", 2, 2},
                       PipelineCase{"interleaved", 4, 2},
                       PipelineCase{"interleaved", 3, 3},
                       PipelineCase{"zb-h1", 2, 1},
                       PipelineCase{"zb-h1", 4, 1},
                       PipelineCase{"zb-h2", 3, 1},
                       PipelineCase{"zb-h2", 4, 1},
                       PipelineCase{"zb-v", 2, 1},
                       PipelineCase{"zb-v", 4, 1},
                       PipelineCase{"v-min", 3, 1},
                       PipelineCase{"v-min", 4, 1},
                       PipelineCase{"v-half", 2, 1},
                       PipelineCase{"v-half", 4, 1},
                       PipelineCase{"1f1b", 4, 1, VocabularyPlacement::pipeline},
                       PipelineCase{"v-half", 4, 1, VocabularyPlacement::pipeline},
                       PipelineCase{"routes", 3, 1},
                       PipelineCase{"routes", 3, 1, VocabularyPlacement::tensor, 0.33},
                       PipelineCase{"routes", 4, 1, VocabularyPlacement::tensor, 0.25}}),
    [](const auto& info) { return name_of(info.param); });

TEST(PlanOfAMillionMicrobatches, TakesNoLongerThanThatOfAHundred) {
  const ModelSpec spec = reference_spec("llama");
  const auto data_bytes = [&](int microbatches) {
    return plan_step(spec, {.positions = 8}, single_rank_plan(spec), 0,
                     {.sequences = 1, .seq_len = 8, .microbatches = microbatches})
        .memory.at_peak[static_cast<std::size_t>(MemoryTag::data)];
  };
  // Run whole, each of these would take minutes.
  EXPECT_EQ(data_bytes(1'000'000'000), 1'000'000 * data_bytes(1'000));
}

TEST(PlanOfManyMicrobatches, OnAGpuReservesWhatTheWholeStepDoesToAChunk) {
  const ModelSpec spec = reference_spec("llama");
  const StepPlace gpu{.device = {Device::Kind::cuda, 0}};
  const BatchShape batch{.sequences = 1, .seq_len = 4096, .microbatches = 1500};
  const BuildOptions options{.dtype = DType::bf16, .positions = 4096};
  const auto one = single_rank_plan(spec);
  const auto fast = plan_step(spec, options, one, 0, batch, gpu).memory;
  const auto whole = plan_whole_step(spec, options, one, 0, batch, gpu).memory;
  EXPECT_EQ(fast.peak, whole.peak);
  EXPECT_NEAR(static_cast<double>(fast.reserved), static_cast<double>(whole.reserved), 8 << 20);
}

}  // namespace
}  // namespace heddle
