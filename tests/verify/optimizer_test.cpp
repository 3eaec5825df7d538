// Ten steps with every optimizer beside AdamW, against torch.optim's.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <mutex>

#include "comm/threads/thread_world.h"
#include "verify/optimizer_cases.h"

namespace heddle {
namespace {

/// On every rank every loss and tensor, and with `elements` every element, is as near as `limit`.
void expect_near(const OptimizerCase& of, const ParallelRequest& request, double limit,
                 bool elements) {
  const int ranks = request.dp * request.tp * request.pp;
  std::mutex mutex;
  run_ranks(ranks, [&](World& world) {
    const TenSteps steps = ten_steps(of, request, world);
    const std::lock_guard lock(mutex);
    EXPECT_LE(steps.loss, limit) << of.name;
    EXPECT_LE(elements ? steps.element : 0.0, limit) << of.name;
    EXPECT_LE(steps.tensor, limit) << of.name << ": " << steps.worst;
    testing::Test::RecordProperty(of.name, fmt::format("{:.1e}", steps.tensor));
  });
}

const ParallelRequest kMeshes[] = {{.dp = 1},
                                   {.dp = 2, .zero = 0},
                                   {.dp = 2, .zero = 3},
                                   {.dp = 2, .tp = 2, .pp = 2, .zero = 2, .sequence = true}};

TEST(Optimizers, SgdTakesTenStepsOfTorch) {
  for (const ParallelRequest& mesh : kMeshes) expect_near(kSgdNesterov, mesh, 1e-5, true);
  expect_near(kSgdDampened, {.dp = 1}, 1e-5, true);
  expect_near(kSgdDampened, {.dp = 2, .tp = 3, .zero = 1}, 1e-5, true);
}

TEST(Optimizers, MuonTakesTenStepsOfTorch) {
  // Tables that AdamW has may differ more in an element whose gradients are about zero.
  for (const ParallelRequest& mesh : kMeshes) expect_near(kMuon, mesh, 1e-3, false);
  expect_near(kPlainMuon, {.dp = 1}, 1e-3, false);
  expect_near(kPlainMuon, {.dp = 2, .tp = 3, .zero = 1}, 1e-3, false);
}

TEST(Optimizers, MuonDiffersFromTorchByItsProductsInBf16Only) {
  for (const ParallelRequest& mesh : kMeshes) expect_near(kMuonInFloat32, mesh, 1e-5, true);
}

}  // namespace
}  // namespace heddle
