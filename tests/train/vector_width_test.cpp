#include <gtest/gtest.h>
#include <hwy/targets.h>

#include "checkpoint/safetensors.h"
#include "comm/threads/thread_world.h"
#include "config/load.h"
#include "train/text_run.h"
#include "train/trainer.h"

namespace heddle {
namespace {

/// 20 steps in this process, with the vectors that `disabled` leaves, and the losses. Step 1's
/// checkpoint stays; a rate of 0 leaves the start's weights in it.
std::vector<double> train_without(std::int64_t disabled, const TextRun& run,
                                  const std::vector<std::string>& settings = {}) {
  hwy::DisableTargets(disabled);
  run.write("run.toml", TextRun::run_file(run.path().string() + "/"));
  std::vector<std::string> all = {"train.steps=20", "checkpoint.every=0"};
  all.insert(all.end(), settings.begin(), settings.end());
  const auto loaded = config::load_run_file(run.path() / "run.toml", all);
  run_ranks(1, [&](World& world) { train(loaded.config, TrainOptions{}, world); });
  hwy::DisableTargets(0);
  return run.losses();
}

/// A machine whose vectors are half or a quarter as wide adds in another order, and no more.
void expect_near(const std::vector<double>& a, const std::vector<double>& b) {
  ASSERT_EQ(a.size(), 20U);
  ASSERT_EQ(b.size(), 20U);
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-5) << "step " << i + 1;
}

TEST(VectorWidth, ChangesTheFirstTwentyLossesByLessThanAHundredThousandth) {
  const TextRun best, avx2, baseline;
  const auto losses = train_without(0, best);
  EXPECT_LT(losses.back(), losses.front() - 0.5) << "it learns";
  expect_near(losses, train_without(HWY_AVX3, avx2));
  expect_near(losses, train_without(HWY_AVX3 | HWY_AVX2, baseline));
}

TEST(VectorWidth, OfTheProductsLibraryDoesNotEither) {
  const TextRun best, avx2;
  ASSERT_EQ(best.train({"train.steps=20"}).status, 0);
  const Outcome outcome =
      avx2.train({"train.steps=20"},
                 {.environment = {{"DNNL_MAX_CPU_ISA", "AVX2"}, {"OPENBLAS_CORETYPE", "Haswell"}}});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  expect_near(best.losses(), avx2.losses());
}

TEST(VectorWidth, LeavesRandomWeightsAsTheyAre) {
  const TextRun best, baseline;
  train_without(0, best, {"train.steps=1", "optim.lr=0"});
  train_without(HWY_AVX3 | HWY_AVX2, baseline, {"train.steps=1", "optim.lr=0"});
  EXPECT_EQ(read_text_file(best.checkpoint(1) / "model.safetensors"),
            read_text_file(baseline.checkpoint(1) / "model.safetensors"));
}

}  // namespace
}  // namespace heddle
