// A kind of block that only this test has: trains on every kind of mesh, and is planned and
// simulated, with nothing in src/ that knows of it. tests/train/reshard_test.cpp saves and reshards
// it.

#include <gtest/gtest.h>

#include <mutex>

#include "comm/threads/thread_world.h"
#include "model/shift_mixer.h"
#include "parity/rank_training.h"
#include "parity/whole_tensors.h"
#include "planner/search.h"
#include "planner/simulated_step.h"
#include "planner/step_units.h"
#include "support/source_dir.h"

namespace heddle {
namespace {

constexpr BatchShape kBatch{.sequences = 2, .seq_len = 13, .microbatches = 2};

ModelSpec hybrid() { return with_shift_mixers(deep_spec("llama", 4)); }

struct Outcome {
  std::vector<double> losses;
  std::unique_ptr<WholeTensors> gradients = std::make_unique<WholeTensors>();
  std::unique_ptr<WholeTensors> weights = std::make_unique<WholeTensors>();
};

/// Replicas divide the same four micro-batches.
Outcome train(const ParallelRequest& request, bool recompute = false) {
  const MeshCase mesh{request, recompute};
  BatchShape batch = kBatch;
  batch.microbatches = 4 / request.dp;
  Outcome outcome;
  run_ranks(mesh.ranks(), [&](World& world) {
    RankTraining training(hybrid(), mesh, batch, world);
    const StepResult first = training.gradients();
    outcome.gradients->gather(training.model().store().grad_pieces(), world);
    const StepResult second = training.run(1), third = training.run(2);
    outcome.weights->gather(training.model().store().value_pieces(), world);
    if (world.rank() == 0) outcome.losses = {first.loss, second.loss, third.loss};
  });
  return outcome;
}

const std::vector<ParallelRequest>& requests() {
  static const std::vector<ParallelRequest> all = {
      {.dp = 2, .zero = 0},
      {.dp = 2, .zero = 1},
      {.dp = 4, .zero = 3},
      {.dp = 1, .tp = 2},
      {.dp = 1, .tp = 4, .sequence = true},
      {.dp = 1, .pp = 2},
      {.dp = 1, .pp = 2, .schedule = Pipeline::zb_v},
      {.dp = 2, .tp = 2, .pp = 2, .zero = 3, .sequence = true, .schedule = Pipeline::zb_h1}};
  return all;
}

TEST(BlockKindOfATest, TrainsOnEveryMeshAsOnOneRank) {
  const Outcome one = train({.dp = 1});
  EXPECT_LT(one.losses[2], one.losses[0]);
  EXPECT_TRUE(one.gradients->by_name().contains("model.layers.0.shift.weight"));
  EXPECT_FALSE(one.gradients->by_name().contains("model.layers.1.shift.weight"));
  for (const ParallelRequest& request : requests()) {
    SCOPED_TRACE(name_of(MeshCase{request}));
    const Outcome made = train(request);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(made.losses[i], one.losses[i], 1e-5);
    EXPECT_LT(made.gradients->largest_relative_difference(*one.gradients), 1e-4);
    EXPECT_LT(made.weights->largest_relative_difference(*one.weights), 1e-4);
  }
  const Outcome again = train({.dp = 1}, true);
  EXPECT_EQ(again.gradients->first_difference(*one.gradients), "");
}

/// The gradient of some weights of the mixer, by differences of the loss.
TEST(BlockKindOfATest, HasTheGradientOfItsLoss) {
  run_ranks(1, [&](World& world) {
    RankTraining training(hybrid(), {.request = {.dp = 1}}, kBatch, world);
    training.gradients();
    Parameter& weight =
        **std::ranges::find_if(training.model().store().parameters(),
                               [](const Parameter* p) { return p->shape.dims() == 3; });
    const std::vector<float> gradient(weight.grad.host<float>().begin(),
                                      weight.grad.host<float>().end());
    for (const std::size_t i : {std::size_t{0}, std::size_t{7}, gradient.size() - 1}) {
      float& value = weight.value.host<float>()[i];
      const float before = value;
      const auto loss_at = [&](float delta) {
        value = before + delta;
        return training.gradients().loss;
      };
      const double slope = (loss_at(0.02F) - loss_at(-0.02F)) / 0.04;
      value = before;
      EXPECT_NEAR(slope, gradient[i], 0.02 * std::abs(gradient[i]) + 2e-5) << i;
    }
  });
}

TEST(BlockKindOfATest, IsPlannedAsItRuns) {
  const ModelSpec spec = hybrid();
  for (const ParallelRequest& request : requests()) {
    const MeshCase mesh{request};
    SCOPED_TRACE(name_of(mesh));
    std::mutex one_at_a_time;
    run_ranks(mesh.ranks(), [&](World& world) {
      RankTraining training(spec, mesh, kBatch, world);
      training.run(1);
      const StepPlan plan = plan_step(spec, RankTraining::build_options(mesh, kBatch),
                                      training.plan(), world.rank(), kBatch);
      const MemoryStats stats = training.memory().stats();
      MeshTraffic traffic = training.mesh().traffic(), planned = plan.traffic;
      const std::lock_guard lock(one_at_a_time);
      EXPECT_EQ(stats.peak, plan.memory.peak) << "rank " << world.rank();
      traffic.with(planned, [&](const char* group, const CommCounts& sent, const CommCounts& said) {
        for (std::size_t op = 0; op < kCommOps; ++op) {
          EXPECT_EQ(sent.by_op[op].payload_bytes, said.by_op[op].payload_bytes) << group;
        }
      });
    });
  }
}

TEST(BlockKindOfATest, IsSearchedAndSimulated) {
  const planner::Machine machine =
      planner::read_machine(source_dir() + "/configs/systems/h200-hgx-ndr.toml");
  const planner::Job job{
      .spec = hybrid(), .seq_len = 16, .batch = 64, .stack = planner::Stack::heddle(DType::f32)};
  const auto found = planner::search(machine, job, {.gpus = 8, .threads = 1});
  ASSERT_FALSE(found.best.empty());
  for (const planner::Candidate& plan :
       {planner::Candidate{{.dp = 2, .tp = 2, .pp = 2, .zero = 3}},
        planner::Candidate{{.dp = 2, .tp = 4, .zero = 1, .sequence = true}}}) {
    const auto step = planner::simulate_step(machine, job, plan);
    EXPECT_GT(step.seconds, 0.0);
    EXPECT_NEAR(step.mean.sum(), step.seconds, 1e-9 * step.seconds);
  }
  // The attention's matrices are larger than the mixer's.
  ModelSpec plain = job.spec;
  plain.blocks = {BlockSpec{}};
  EXPECT_LT(job.spec.parameter_count(), plain.parameter_count());
  EXPECT_LT(unit_costs(job.spec, 16)[1], unit_costs(job.spec, 16)[2]);
}

}  // namespace
}  // namespace heddle
