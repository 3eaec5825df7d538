#include "planner/predicted_step.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "model/registry.h"
#include "support/source_dir.h"

namespace heddle::planner {
namespace {

Machine h200() { return read_machine(source_dir() + "/configs/systems/h200-hgx-ndr.toml"); }

ModelSpec llama() { return read_model_spec(source_dir() + "/configs/models/llama-110m.json"); }

double predicted(const Machine& machine, const ParallelRequest& request, int ranks,
                 const RunBatches& batches, DType dtype = DType::bf16) {
  const ModelSpec spec = llama();
  const ParallelPlan plan = make_plan(spec, request, ranks, batches.seq_len);
  return predicted_step_seconds(machine, spec, plan, batches, dtype);
}

TEST(PredictedStep, GrowsWithTheWorkAndShrinksWithTheRanks) {
  const RunBatches four{.sequences = 8, .seq_len = 1024, .microbatches = 4};
  RunBatches eight = four;
  eight.microbatches = 8;
  const double once = predicted(h200(), {}, 1, four);
  EXPECT_GT(once, 0.0);
  EXPECT_NEAR(predicted(h200(), {}, 1, eight) / once, 2.0, 0.2);
  ParallelRequest pipeline{.pp = 2};
  EXPECT_LT(predicted(h200(), pipeline, 2, eight), 0.8 * predicted(h200(), {}, 1, eight));
  RunBatches again = four;
  again.recompute = true;
  EXPECT_GT(predicted(h200(), {}, 1, again), 1.1 * once);
}

TEST(PredictedStep, OfRecomputationRepeatsAllButAttention) {
  const auto seconds = [](int sequences, std::int64_t seq_len, bool recompute) {
    return predicted(h200(), {}, 1,
                     {.sequences = sequences, .seq_len = seq_len, .recompute = recompute});
  };
  const double of_short = seconds(64, 1024, false), of_long = seconds(1, 65536, false);
  EXPECT_GT(of_long, 2.0 * of_short);  // attention
  EXPECT_NEAR((seconds(1, 65536, true) - of_long) / (seconds(64, 1024, true) - of_short), 1.0,
              0.01);
}

TEST(PredictedStep, IsThatOfRanksThatShareTheMachine) {
  Machine machine = h200();
  SharedDevice shared{.ranks = 2, .device = machine.device, .software = machine.software};
  shared.device.matrix_bf16 /= 2;
  shared.device.memory_bytes_per_s /= 2;
  machine.shared.push_back(shared);
  const RunBatches batches{.sequences = 8, .seq_len = 1024, .microbatches = 2};
  EXPECT_DOUBLE_EQ(predicted(machine, {}, 1, batches), predicted(h200(), {}, 1, batches));
  EXPECT_GT(predicted(machine, {}, 2, batches), 1.5 * predicted(h200(), {}, 2, batches));
}

TEST(PredictedStep, OfAnOddVocabularyIsThatOfThePaddedOneThatIsTrained) {
  const auto with_vocabulary = [](std::int64_t vocab) {
    ModelSpec spec = llama();
    spec.vocab = vocab;
    return predicted_step_seconds(h200(), spec, make_plan(spec, {}, 1, 1024),
                                  {.sequences = 8, .seq_len = 1024}, DType::bf16);
  };
  EXPECT_DOUBLE_EQ(with_vocabulary(50257), with_vocabulary(50304));
  EXPECT_LT(with_vocabulary(50257), with_vocabulary(50305));
}

TEST(PredictedStep, GrowsWithTheIterationsOfNewtonAndSchulz) {
  const ModelSpec spec = llama();
  const auto seconds = [&](int steps, bool whole_matrices) {
    const ParallelPlan plan = make_plan(spec, {}, 1, 1024, whole_matrices);
    const RunBatches batches{.sequences = 8, .seq_len = 1024, .newton_schulz_steps = steps};
    return predicted_step_seconds(h200(), spec, plan, batches, DType::bf16);
  };
  const double one = seconds(6, true) - seconds(5, true);
  EXPECT_GT(one, 0.0);
  EXPECT_NEAR(seconds(10, true) - seconds(5, true), 5 * one, 1e-9);
  EXPECT_EQ(seconds(10, false), seconds(5, false));
}

TEST(PredictedStep, IsThatOfARunWithOverlapOrWithout) {
  const RunBatches batches{.sequences = 1, .seq_len = 1024};
  EXPECT_GT(predicted(h200(), {.dp = 8, .overlap = false}, 8, batches),
            predicted(h200(), {.dp = 8}, 8, batches));
}

TEST(PredictedStep, OfADtypeThatTheMachineFileLacksIsRefused) {
  Machine machine = h200();
  machine.device.matrix_f32 = 0.0;
  try {
    predicted(machine, {}, 1, {}, DType::f32);
    FAIL() << "predicted without a rate";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    EXPECT_NE(std::string(error.what()).find("f32"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace heddle::planner
