// Models with experts on meshes: as on one rank, planned as they run, searched and simulated.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "comm/threads/thread_world.h"
#include "model/config_testing.h"
#include "parity/rank_training.h"
#include "parity/whole_tensors.h"
#include "planner/search.h"
#include "planner/simulated_step.h"
#include "planner/step_units.h"
#include "verify/reference.h"
#include "verify/shared_files.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

constexpr BatchShape kBatch{.sequences = 2, .seq_len = 13, .microbatches = 2};

/// Four layers of a family, with both losses of the router.
ModelSpec deep(const std::string& family, const Json& changes = Json::object()) {
  ModelSpec spec = spec_of(with(with(small_config(family), {{"num_hidden_layers", 4},
                                                            {"num_attention_heads", 4},
                                                            {"num_key_value_heads", 2},
                                                            {"hidden_size", 32}}),
                                changes));
  spec.experts->loss = {.balance = 0.02, .z = 0.001};
  return spec;
}

ModelSpec mixed() { return deep("qwen3_moe", {{"decoder_sparse_step", 2}, {"head_dim", 8}}); }

/// With a shared expert, scores by sigmoid in groups, and a dense layer first.
ModelSpec shared() {
  return deep("heddle_moe", {{"n_shared_experts", 1},
                             {"moe_intermediate_size", 12},
                             {"n_group", 3},
                             {"topk_group", 2},
                             {"routed_scaling_factor", 2.5},
                             {"first_k_dense_replace", 1}});
}

struct Outcome {
  std::vector<double> losses;
  double norm = 0.0;
  std::unique_ptr<WholeTensors> gradients = std::make_unique<WholeTensors>();
  std::unique_ptr<WholeTensors> weights = std::make_unique<WholeTensors>();
};

/// Replicas divide the same four micro-batches; of more, each has one.
Outcome train(const ModelSpec& spec, const ParallelRequest& request, bool recompute = false) {
  const MeshCase mesh{request, recompute};
  BatchShape batch = kBatch;
  batch.microbatches = std::max(1, 4 / request.dp);
  Outcome outcome;
  run_ranks(mesh.ranks(), [&](World& world) {
    RankTraining training(spec, mesh, batch, world);
    const StepResult first = training.gradients();
    outcome.gradients->gather(training.model().store().grad_pieces(), world);
    const StepResult second = training.run(1), third = training.run(2);
    outcome.weights->gather(training.model().store().value_pieces(), world);
    if (world.rank() == 0) {
      outcome.losses = {first.loss, second.loss, third.loss};
      outcome.norm = first.grad_norm;
    }
  });
  return outcome;
}

const std::vector<MeshCase>& meshes() {
  static const std::vector<MeshCase> all = {
      {{.dp = 2, .zero = 0}},
      {{.dp = 2, .zero = 1}},
      {{.dp = 4, .zero = 2}},
      {{.dp = 4, .zero = 3}},
      {{.dp = 2, .zero = 3}, true},
      {{.dp = 1, .tp = 2}},
      {{.dp = 1, .tp = 2}, true},
      {{.dp = 1, .tp = 2, .sequence = true}},
      {{.dp = 1, .pp = 2}},
      {{.dp = 1, .pp = 4, .schedule = Pipeline::gpipe}},
      {{.dp = 1, .pp = 2, .schedule = Pipeline::interleaved, .chunks = 2}},
      {{.dp = 1, .pp = 2, .schedule = Pipeline::zb_v}},
      {{.dp = 1, .pp = 2, .schedule = Pipeline::v_half}, true},
      {{.dp = 1, .cp = 2, .context = ContextMethod::ring}},
      {{.dp = 1, .cp = 3, .context = ContextMethod::gather}},
      {{.dp = 2, .cp = 2, .context = ContextMethod::ulysses, .zero = 3}},
      {{.dp = 1, .tp = 2, .cp = 2, .context = ContextMethod::ring, .sequence = true}},
      {{.dp = 2, .tp = 2, .pp = 2, .zero = 3, .sequence = true, .schedule = Pipeline::zb_h1}},
      // Experts divided over ranks of every axis.
      {{.dp = 2, .ep = 2}},
      {{.dp = 2, .ep = 2, .zero = 1}, true},
      {{.dp = 4, .ep = 2, .zero = 2}},
      {{.dp = 4, .ep = 2, .zero = 3}},
      {{.dp = 4, .ep = 4, .zero = 3}},
      {{.dp = 8, .ep = 8, .zero = 1}},
      {{.dp = 1, .cp = 2, .context = ContextMethod::ring, .ep = 2}},
      {{.dp = 1, .cp = 3, .context = ContextMethod::gather, .ep = 3}},
      {{.dp = 2, .cp = 3, .context = ContextMethod::ring, .ep = 6, .zero = 1}},
      {{.dp = 1, .tp = 2, .ep = 2}},
      {{.dp = 1, .tp = 2, .ep = 2}, true},
      {{.dp = 1, .tp = 2, .ep = 2, .sequence = true}, true},
      {{.dp = 2, .tp = 2, .ep = 2, .zero = 3, .sequence = true}},
      {{.dp = 2, .tp = 2, .ep = 4, .zero = 1}},
      {{.dp = 2, .pp = 2, .ep = 2, .zero = 2, .schedule = Pipeline::zb_v}},
      {{.dp = 2,
        .tp = 2,
        .pp = 2,
        .ep = 2,
        .zero = 3,
        .schedule = Pipeline::interleaved,
        .chunks = 2}}};
  return all;
}

std::vector<ModelSpec> models() { return {deep("mixtral"), deep("olmoe"), mixed(), shared()}; }

class ExpertsOn : public testing::TestWithParam<std::size_t> {
 protected:
  const MeshCase& mesh_ = meshes()[GetParam()];
  /// Those that the mesh can divide.
  std::vector<ModelSpec> fitting() const {
    std::vector<ModelSpec> all = models();
    std::erase_if(all, [&](const ModelSpec& spec) {
      return !problems_of(spec, mesh_.request, mesh_.ranks()).empty();
    });
    return all;
  }
};

TEST_P(ExpertsOn, TrainAsOnOneRank) {
  if (fitting().empty()) GTEST_SKIP() << "no model here has the experts for this mesh";
  for (const ModelSpec& spec : fitting()) {
    SCOPED_TRACE(spec.family);
    if (mesh_.request.dp > 4) continue;  // other data
    const Outcome one = train(spec, {.dp = 1});
    EXPECT_LT(one.losses[2], one.losses[0]);
    const Outcome made = train(spec, mesh_.request, mesh_.recompute);
    for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(made.losses[i], one.losses[i], 1e-5);
    EXPECT_NEAR(made.norm, one.norm, 1e-6 * one.norm);
    EXPECT_LT(made.gradients->largest_relative_difference(*one.gradients), 1e-4);
    EXPECT_LT(made.weights->largest_relative_difference(*one.weights), 1e-4);
  }
}

/// Where experts are divided, what a rank receives depends on the tokens: planned is that all get
/// the same, which is right for all ranks together.
TEST_P(ExpertsOn, ArePlannedAsTheyRun) {
  if (fitting().empty()) GTEST_SKIP() << "no model here has the experts for this mesh";
  const bool is_divided = mesh_.request.ep > 1;
  for (const ModelSpec& spec : fitting()) {
    SCOPED_TRACE(spec.family);
    std::mutex one_at_a_time;
    std::map<std::pair<std::string, std::size_t>, std::int64_t> excess;
    run_ranks(mesh_.ranks(), [&](World& world) {
      RankTraining training(spec, mesh_, kBatch, world);
      training.run(1);
      const StepPlan plan = plan_step(spec, RankTraining::build_options(mesh_, kBatch),
                                      training.plan(), world.rank(), kBatch);
      const MemoryStats stats = training.memory().stats();
      MeshTraffic traffic = training.mesh().traffic(), planned = plan.traffic;
      const std::lock_guard lock(one_at_a_time);
      if (!is_divided) {
        EXPECT_EQ(stats.peak, plan.memory.peak) << "rank " << world.rank();
      }
      traffic.with(planned, [&](const char* group, const CommCounts& sent, const CommCounts& said) {
        for (std::size_t op = 0; op < kCommOps; ++op) {
          const std::int64_t more = sent.by_op[op].payload_bytes - said.by_op[op].payload_bytes;
          if (!is_divided) {
            EXPECT_EQ(more, 0) << group;
          }
          excess[{group, op}] += more;
          EXPECT_EQ(sent.by_op[op].calls, said.by_op[op].calls) << group;
        }
      });
    });
    for (const auto& [call, bytes] : excess) EXPECT_EQ(bytes, 0) << call.first;
  }
}

TEST_P(ExpertsOn, HoldsTheSharedReferences) {
  const fs::path folder = shared_folder() / "fixtures" / "models";
  if (!fs::exists(folder)) GTEST_SKIP() << "no fixtures at " << folder;
  int held = 0;
  for (const char* name : {"mixtral", "olmoe", "qwen3-moe"}) {
    const ModelSpec spec = read_model_spec(folder / name / "config.json");
    if (!problems_of(spec, mesh_.request, mesh_.ranks()).empty()) continue;
    ReferenceReport report;
    run_ranks(mesh_.ranks(), [&](World& world) {
      const ReferenceReport own = verify_reference(
          folder / name, {.recompute = mesh_.recompute, .parallel = mesh_.request}, world);
      if (world.rank() == 0) report = own;
    });
    EXPECT_TRUE(report.ok()) << name << ": " << to_json(report).dump(1);
    ++held;
  }
  if (held == 0) GTEST_SKIP() << "no reference has the heads or layers for this mesh";
}

INSTANTIATE_TEST_SUITE_P(Parity, ExpertsOn, testing::Range(std::size_t{0}, meshes().size()),
                         [](const auto& info) { return name_of(meshes()[info.param]); });

TEST(Experts, RecomputedHaveTheSameBits) {
  for (const ModelSpec& spec : models()) {
    const Outcome one = train(spec, {.dp = 1}), again = train(spec, {.dp = 1}, true);
    EXPECT_EQ(again.gradients->first_difference(*one.gradients), "") << spec.family;
  }
}

TEST(Experts, AreSearchedAndSimulated) {
  const planner::Machine machine =
      planner::read_machine(HEDDLE_SOURCE_DIR "/configs/systems/h200-hgx-ndr.toml");
  for (const ModelSpec& spec : models()) {
    planner::Stack stack = planner::Stack::heddle(DType::f32);
    const planner::Job job{.spec = spec, .seq_len = 16, .batch = 64, .stack = stack};
    const auto found = planner::search(machine, job, {.gpus = 8, .threads = 1});
    ASSERT_FALSE(found.best.empty());
    const auto step = planner::simulate_step(machine, job, {{.dp = 4, .pp = 2, .zero = 1}});
    EXPECT_GT(step.seconds, 0.0);
  }
}

}  // namespace
}  // namespace heddle
