// MLPs in chunks of tokens, on ranks that divide the MLP, the sequence, the layers or the halves of
// backward.

#include <gtest/gtest.h>

#include <mutex>

#include "comm/threads/thread_world.h"
#include "parity/rank_training.h"
#include "parity/whole_tensors.h"

namespace heddle {
namespace {

constexpr BatchShape kBatch{.sequences = 2, .seq_len = 13, .microbatches = 2};

struct Outcome {
  double loss = 0.0;
  std::unique_ptr<WholeTensors> gradients = std::make_unique<WholeTensors>();
};

/// Replicas divide the same four micro-batches.
Outcome train(const ModelSpec& spec, const MeshCase& mesh) {
  BatchShape batch = kBatch;
  batch.microbatches = 4 / mesh.request.dp;
  Outcome outcome;
  std::mutex one_at_a_time;
  run_ranks(mesh.ranks(), [&](World& world) {
    RankTraining training(spec, mesh, batch, world);
    const StepResult result = training.gradients();
    outcome.gradients->gather(training.model().store().grad_pieces(), world);
    training.run(1);
    const StepPlan plan = plan_step(spec, RankTraining::build_options(mesh, batch), training.plan(),
                                    world.rank(), batch);
    const std::lock_guard lock(one_at_a_time);
    EXPECT_EQ(training.memory().stats().peak, plan.memory.peak) << "rank " << world.rank();
    if (world.rank() == 0) outcome.loss = result.loss;
  });
  return outcome;
}

TEST(MlpsInChunks, TrainOnEveryMeshAsWholeOnesOnOneRankAndHoldWhatIsPlanned) {
  for (const char* name : {"llama", "gpt-neox"}) {
    const ModelSpec spec = deep_spec(name, 4);
    const Outcome one = train(spec, {{.dp = 1}});
    for (const ParallelRequest& request :
         std::vector<ParallelRequest>{{.dp = 1},
                                      {.dp = 2, .zero = 3},
                                      {.dp = 1, .tp = 2, .sequence = false},
                                      {.dp = 1, .tp = 2, .sequence = true},
                                      {.dp = 1, .pp = 2, .schedule = Pipeline::zb_v},
                                      {.dp = 2,
                                      .tp = 2,
                                      .pp = 2,
                                      .zero = 3,
                                      .sequence = true,
                                      .schedule = Pipeline::zb_h1}}) {
      SCOPED_TRACE(name_of(MeshCase{request}) + " of " + name);
      const Outcome made = train(spec, {request, true, 7});
      EXPECT_NEAR(made.loss, one.loss, 1e-5);
      EXPECT_LT(made.gradients->largest_relative_difference(*one.gradients), 1e-4);
    }
  }
}

}  // namespace
}  // namespace heddle
