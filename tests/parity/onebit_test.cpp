// 1-bit Adam on meshes: AdamW until it freezes, the same weights on all replicas behind it, and the
// memory and traffic that were planned in both phases.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <mutex>

#include "comm/threads/thread_world.h"
#include "parity/rank_training.h"
#include "parity/traffic_text.h"
#include "parity/whole_tensors.h"
#include "planner/step_units.h"
#include "support/source_dir.h"

namespace heddle {
namespace {

constexpr std::int64_t kFreeze = 3;
const OptimizerConfig kOnebit = OnebitAdamConfig{.freeze_step = kFreeze};

const std::vector<MeshCase>& onebit_meshes() {
  static const std::vector<MeshCase> cases = {
      {{.dp = 1}},
      {{.dp = 2, .zero = 0}},
      {{.dp = 2, .zero = 1}},
      {{.dp = 3, .zero = 1}},
      {{.dp = 4, .zero = 0, .overlap = false}},
      {{.dp = 1, .tp = 2}},
      {{.dp = 2, .tp = 2, .zero = 0}},
      {{.dp = 2, .tp = 4, .zero = 1, .sequence = true}},  // more than the key heads of llama
      {{.dp = 2, .pp = 2, .zero = 0}},
      {{.dp = 2, .pp = 2, .zero = 1, .schedule = Pipeline::zb_v}},
      {{.dp = 2, .pp = 2, .zero = 1, .vocabulary = VocabularyPlacement::pipeline}},
      {{.dp = 1, .cp = 2, .context = ContextMethod::ring, .zero = 0}},
      {{.dp = 2, .cp = 2, .context = ContextMethod::gather, .zero = 1}},
      {{.dp = 2, .tp = 2, .pp = 2, .zero = 1, .sequence = true, .schedule = Pipeline::v_half},
       true},
  };
  return cases;
}

BatchShape batch_on(const MeshCase& mesh) {
  return {.sequences = 1, .seq_len = 13, .microbatches = 12 / mesh.request.dp};
}

class OnebitAdamOnMeshes : public testing::TestWithParam<std::size_t> {
 protected:
  static const MeshCase& mesh() { return onebit_meshes()[GetParam()]; }

  /// On every model that fits; `steps` of them, and then `look` on every rank.
  static void train(const OptimizerConfig& optimizer, int steps,
                    const std::function<void(RankTraining&, World&)>& look) {
    for (const char* model : {"llama", "gpt2", "llama-linear-bias"}) {
      const ModelSpec spec = deep_spec(model, 4);
      if (!fits(spec, mesh().request)) continue;
      SCOPED_TRACE(model);
      run_ranks(mesh().ranks(), [&](World& world) {
        RankTraining training(spec, mesh(), batch_on(mesh()), world, optimizer);
        for (int step = 1; step <= steps; ++step) training.run(step);
        look(training, world);
      });
    }
  }
};

TEST_P(OnebitAdamOnMeshes, IsAdamWToTheBitUntilItFreezes) {
  std::vector<std::unique_ptr<WholeTensors>> made[2];
  for (const int which : {0, 1}) {
    train(which == 0 ? OptimizerConfig(AdamWConfig{}) : kOnebit, kFreeze,
          [&](RankTraining& training, World& world) {
            const ParamStore& store = training.model().store();
            const auto keep = [&](const std::vector<ParamPiece>& pieces) {
              if (world.rank() == 0) made[which].push_back(std::make_unique<WholeTensors>());
              world.all().barrier();
              made[which].back()->gather(pieces, world);
            };
            keep(store.value_pieces());
            keep(store.state_pieces(0));
            keep(store.state_pieces(1));
          });
  }
  ASSERT_EQ(made[0].size(), made[1].size());
  ASSERT_FALSE(made[0].empty());
  for (std::size_t i = 0; i < made[0].size(); ++i) {
    EXPECT_EQ(made[0][i]->first_difference(*made[1][i]), "");
  }
}

/// gather() fails where two ranks hold other bits of the same element: replicas, copies of key
/// heads, both ends of a tied table.
TEST_P(OnebitAdamOnMeshes, KeepsAllCopiesOfAWeightEqualToTheBitWhenFrozen) {
  train(kOnebit, kFreeze + 4, [&](RankTraining& training, World& world) {
    static std::unique_ptr<WholeTensors> tensors[3];
    const ParamStore& store = training.model().store();
    const std::vector<ParamPiece> pieces[] = {store.value_pieces(), store.state_pieces(0),
                                              store.state_pieces(1)};
    for (std::size_t i = 0; i < 3; ++i) {
      if (world.rank() == 0) tensors[i] = std::make_unique<WholeTensors>();
      world.all().barrier();
      tensors[i]->gather(pieces[i], world);
      world.all().barrier();
    }
  });
}

TEST_P(OnebitAdamOnMeshes, HoldsAndSendsWhatIsPlannedInBothPhases) {
  for (const char* model : {"llama", "gpt2", "llama-linear-bias"}) {
    const ModelSpec spec = deep_spec(model, 4);
    if (!fits(spec, mesh().request)) continue;
    SCOPED_TRACE(model);
    std::mutex one_at_a_time;
    run_ranks(mesh().ranks(), [&](World& world) {
      RankTraining training(spec, mesh(), batch_on(mesh()), world, kOnebit);
      std::vector<MeshTraffic> by_step;
      for (int step = 1; step <= kFreeze + 2; ++step) {
        training.run(step);
        by_step.push_back(training.mesh().traffic());
      }
      const MemoryStats stats = training.memory().stats();
      const StepPlan plan =
          plan_step(spec, RankTraining::build_options(mesh(), batch_on(mesh())), training.plan(),
                    world.rank(), batch_on(mesh()), {.optimizer = kOnebit});
      const std::lock_guard lock(one_at_a_time);
      EXPECT_EQ(stats.peak, plan.memory.peak) << "rank " << world.rank();
      EXPECT_EQ(stats.at_peak, plan.memory.at_peak) << "rank " << world.rank();
      ASSERT_TRUE(plan.later.has_value());
      const auto in_step = [&](std::size_t step) {
        return step == 0 ? by_step[0] : by_step[step] - by_step[step - 1];
      };
      EXPECT_EQ(text(in_step(kFreeze - 1)), text(plan.traffic));
      EXPECT_EQ(text(in_step(kFreeze)), text(plan.later->first));
      EXPECT_EQ(text(in_step(kFreeze + 1)), text(plan.later->traffic));
    });
  }
}

/// Without cp, over which layers make calls that are no part of the list.
class OnebitStepList : public OnebitAdamOnMeshes {
 public:
  static std::vector<std::size_t> cases() {
    std::vector<std::size_t> found;
    for (std::size_t i = 0; i < onebit_meshes().size(); ++i) {
      if (onebit_meshes()[i].request.cp == 1) found.push_back(i);
    }
    return found;
  }
};

/// What the planner counts from the list of a frozen step is what ranks send.
TEST_P(OnebitStepList, TellsTheFrozenStepThatRuns) {
  const planner::Machine machine =
      planner::read_machine(source_dir() + "/configs/systems/h200-hgx-ndr.toml");
  for (const ModelSpec& spec : grid_specs()) {
    if (!fits(spec, mesh().request)) continue;
    SCOPED_TRACE(spec.family);
    const BatchShape batch = batch_on(mesh());
    const BuildOptions options = RankTraining::build_options(mesh(), batch);
    planner::Job job{.spec = spec,
                     .seq_len = batch.seq_len,
                     .batch = batch.microbatches * mesh().request.dp,
                     .stack = planner::Stack::heddle(DType::f32, planner::Updates::onebit_adam)};
    job.stack.loss_chunk = options.loss_chunk;
    const planner::Candidate candidate{
        mesh().request, mesh().recompute ? planner::Recompute::full : planner::Recompute::none, 1};
    const ParallelPlan plan = make_plan(spec, mesh().request, mesh().ranks(), batch.seq_len);
    const planner::StepUnits planned = planner::step_units(
        machine, job, candidate, planner::block_cost(machine, job, candidate), plan.rank_of_stage);
    StepPolicy policy = plan.policy;
    policy.reduces = false;
    for (int pp_rank = 0; pp_rank < candidate.pp; ++pp_rank) {
      const int rank = pp_rank * candidate.dp * candidate.tp;
      const StepPlan step = plan_step(spec, options, plan, rank, batch, {.optimizer = kOnebit});
      EXPECT_EQ(text(step_traffic(step_schedule(plan, batch.microbatches), pp_rank,
                                  planned.ranks[static_cast<std::size_t>(pp_rank)].units, policy,
                                  plan.mesh, planned.sizes)),
                text(step.later->traffic))
          << "pp rank " << pp_rank;
    }
  }
}

std::string case_name(const testing::TestParamInfo<std::size_t>& info) {
  return name_of(onebit_meshes()[info.param]);
}
INSTANTIATE_TEST_SUITE_P(Parity, OnebitAdamOnMeshes,
                         testing::Range(std::size_t{0}, onebit_meshes().size()), case_name);
INSTANTIATE_TEST_SUITE_P(Parity, OnebitStepList, testing::ValuesIn(OnebitStepList::cases()),
                         case_name);

/// Weights after some frozen steps on llama.
WholeTensors& frozen_weights(const MeshCase& mesh, WholeTensors& weights) {
  const ModelSpec spec = deep_spec("llama", 4);
  run_ranks(mesh.ranks(), [&](World& world) {
    RankTraining training(spec, mesh, batch_on(mesh), world, kOnebit);
    for (int step = 1; step <= kFreeze + 4; ++step) training.run(step);
    weights.gather(training.model().store().value_pieces(), world);
  });
  return weights;
}

TEST(OnebitAdam, GivesTheSameBitsWithAndWithoutZeroAndPipelines) {
  WholeTensors plain, divided, piped;
  frozen_weights({{.dp = 2, .zero = 0}}, plain);
  EXPECT_EQ(frozen_weights({{.dp = 2, .zero = 1}}, divided).first_difference(plain), "");
  EXPECT_EQ(frozen_weights({{.dp = 2, .pp = 2, .zero = 1, .schedule = Pipeline::zb_h1}}, piped)
                .first_difference(plain),
            "");
}

TEST(OnebitAdam, SendsAThirtySecondOfFloat32ForMatrices) {
  ModelSpec spec = deep_spec("llama", 2);
  spec.hidden = 256;
  spec.heads = spec.kv_heads = 4;
  spec.head_dim = 64;
  spec.ffn = 512;
  spec.rope->dims = 64;
  const MeshCase mesh{{.dp = 4, .zero = 0}};
  const ParallelPlan plan = make_plan(spec, mesh.request, 4, 13);
  const auto bytes = [](const MeshTraffic& traffic, CommOp op) {
    return traffic.on(Axis::dp).by_op[static_cast<std::size_t>(op)].payload_bytes;
  };
  const StepPlan step = plan_step(spec, RankTraining::build_options(mesh, batch_on(mesh)), plan, 0,
                                  batch_on(mesh), {.optimizer = kOnebit});
  const MeshTraffic &warm = step.traffic, &frozen = step.later->traffic;
  // Of an all-reduce a rank sends its payload twice, of the other two once, all times 3 / 4.
  const auto matrices = static_cast<double>(
      2 * (bytes(warm, CommOp::all_reduce) - bytes(frozen, CommOp::all_reduce)));
  const auto sent =
      static_cast<double>(bytes(frozen, CommOp::all_to_all) + bytes(frozen, CommOp::all_gather));
  EXPECT_NEAR(matrices / sent, 32.0, 0.1);
}

TEST(OnebitAdam, LeavesEverythingAsItWasWhereOneRankHasAGradientThatIsNotFinite) {
  const ModelSpec spec = deep_spec("llama", 2);
  for (const MeshCase& mesh : {MeshCase{{.dp = 2, .zero = 0}}, MeshCase{{.dp = 2, .zero = 1}}}) {
    run_ranks(2, [&](World& world) {
      RankTraining training(spec, mesh, batch_on(mesh), world, kOnebit);
      for (int step = 1; step <= kFreeze + 2; ++step) training.run(step);
      const ParamStore& store = training.model().store();
      const auto bits = [&] {
        std::vector<float> all;
        const auto add = [&](const std::vector<ParamPiece>& pieces) {
          for (const ParamPiece& piece : pieces) {
            for (std::int64_t row = 0; row < piece.data.size(0); ++row) {
              const Tensor part = piece.data.dims() == 2 ? piece.data.select(0, row) : piece.data;
              const auto values = part.host<float>();
              all.insert(all.end(), values.begin(), values.end());
              if (piece.data.dims() != 2) break;
            }
          }
        };
        add(store.value_pieces());
        for (std::size_t i = 0; i < store.states().size(); ++i) add(store.state_pieces(i));
        return all;
      };
      const auto before = bits();
      Parameter& spoilt = *store.parameters().front();
      const Tensor value = spoilt.value;
      const float good = value.data<float>()[0];
      if (world.rank() == 1) {
        value.data<float>()[0] = std::numeric_limits<float>::quiet_NaN();
      }
      const StepResult result = training.run(kFreeze + 3);
      EXPECT_FALSE(result.is_finite);
      if (world.rank() == 1) value.data<float>()[0] = good;
      const auto after = bits();
      ASSERT_EQ(after.size(), before.size());
      EXPECT_EQ(std::memcmp(after.data(), before.data(), before.size() * sizeof(float)), 0);
      EXPECT_TRUE(training.run(kFreeze + 3).is_finite);
    });
  }
}

TEST(OnebitAdam, FreezesWhenTheSecondMomentHasSettledBehindTheWarmUp) {
  const ModelSpec spec = deep_spec("llama", 2);
  const MeshCase mesh{{.dp = 2, .zero = 1}};
  // The same batch in every step: its second moment settles soon. Looked at every second step.
  const auto first_frozen = [&](double settled, std::int64_t least) {
    std::int64_t found = 0;
    run_ranks(2, [&](World& world) {
      RankTraining training(
          spec, mesh, batch_on(mesh), world,
          OnebitAdamConfig{.adamw = {.beta2 = 0.5}, .settled = settled, .least_steps = least});
      for (int step = 1; step <= 30; ++step) {
        const bool is_warming_up = training.run(step, 1e-5).is_warming_up;
        if (world.rank() == 0 && !is_warming_up && found == 0) found = step;
      }
    });
    return found;
  };
  const std::int64_t early = first_frozen(0.9, 0), late = first_frozen(0.9, 20);
  EXPECT_GT(early, 4);
  EXPECT_LT(early, 20);
  EXPECT_GT(late, 20);
  EXPECT_EQ(first_frozen(0.9999999, 0), 0) << "it never changes so little";
}

}  // namespace
}  // namespace heddle
