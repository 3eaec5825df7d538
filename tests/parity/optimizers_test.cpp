// Every optimizer on meshes of every kind: the weights of one rank, and exactly the memory and the
// traffic that were planned.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <mutex>
#include <variant>

#include "comm/threads/thread_world.h"
#include "parity/rank_part.h"
#include "parity/rank_training.h"
#include "parity/volumes.h"
#include "parity/whole_tensors.h"
#include "planner/matrix_work.h"
#include "support/source_dir.h"

namespace heddle {
namespace {

constexpr int kSequencesOfAStep = 8;

struct Named {
  const char* name;
  OptimizerConfig config;
};
const Named kOptimizers[] = {
    {"sgd", SgdConfig{.momentum = 0.9, .nesterov = true, .weight_decay = 0.1}},
    {"plain_sgd", SgdConfig{}},
    {"muon", MuonConfig{}}};

const std::vector<MeshCase>& meshes() {
  static const std::vector<MeshCase> cases = {
      {{.dp = 2, .zero = 0}},
      {{.dp = 2, .zero = 1}},
      {{.dp = 4, .zero = 2}},
      {{.dp = 2, .zero = 3}},
      {{.dp = 1, .tp = 2}},
      {{.dp = 1, .tp = 4, .sequence = true}},  // more than the key heads of llama
      {{.dp = 1, .pp = 3, .schedule = Pipeline::one_f_one_b}},
      {{.dp = 2, .tp = 2, .zero = 0}},
      {{.dp = 2, .tp = 2, .zero = 1, .sequence = true}},
      {{.dp = 2, .tp = 4, .zero = 3}},
      {{.dp = 2, .pp = 2, .zero = 2, .schedule = Pipeline::zb_h1}},
      {{.dp = 1, .tp = 2, .pp = 2, .vocabulary = VocabularyPlacement::pipeline}},
      {{.dp = 2, .tp = 2, .pp = 2, .zero = 3, .sequence = true, .schedule = Pipeline::v_half},
       true},
  };
  return cases;
}

BatchShape batch_on(const MeshCase& mesh) {
  return {.sequences = 1, .seq_len = 13, .microbatches = kSequencesOfAStep / mesh.request.dp};
}

/// Three steps; `look` sees every rank afterwards.
void train(const ModelSpec& spec, const MeshCase& mesh, const OptimizerConfig& optimizer,
           const std::function<void(RankTraining&, World&)>& look) {
  run_ranks(mesh.ranks(), [&](World& world) {
    RankTraining training(spec, mesh, batch_on(mesh), world, optimizer);
    for (const int step : {1, 2, 3}) training.run(step);
    look(training, world);
  });
}

double relative_difference(const std::vector<double>& made, const std::vector<double>& expected) {
  double squares = 0.0, norm = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    squares += std::pow(made[i] - expected[i], 2);
    norm += std::pow(expected[i], 2);
  }
  return std::sqrt(squares / norm);
}

class OptimizersOnMeshes : public testing::TestWithParam<std::tuple<std::size_t, std::size_t>> {
 protected:
  static const MeshCase& mesh() { return meshes()[std::get<0>(GetParam())]; }
  static const OptimizerConfig& optimizer() { return kOptimizers[std::get<1>(GetParam())].config; }
};

TEST_P(OptimizersOnMeshes, GiveTheWeightsAndStatesOfOneRank) {
  for (const char* model : {"llama", "gpt2"}) {
    const ModelSpec spec = deep_spec(model, 4);
    if (!fits(spec, mesh().request)) continue;
    struct Made {
      WholeTensors weights;
      std::vector<std::unique_ptr<WholeTensors>> states;
    } expected, made;
    const auto collect = [](Made& to) {
      return [&to](RankTraining& training, World& world) {
        const ParamStore& store = training.model().store();
        to.weights.gather(store.value_pieces(), world);
        for (std::size_t i = 0; i < store.states().size(); ++i) {
          if (world.rank() == 0) to.states.push_back(std::make_unique<WholeTensors>());
          world.all().barrier();
          to.states[i]->gather(store.state_pieces(i), world);
        }
      };
    };
    train(spec, MeshCase{{.dp = 1}}, optimizer(), collect(expected));
    train(spec, mesh(), optimizer(), collect(made));
    for (const auto& [name, want] : expected.weights.by_name()) {
      // Where a gradient is zero but for rounding, as that of the keys' biases, AdamW makes steps
      // of what is left, and on every mesh others.
      const bool has_adamw = std::holds_alternative<MuonConfig>(optimizer()) &&
                             !expected.states[0]->by_name().contains(name);
      EXPECT_LT(relative_difference(made.weights.by_name().at(name), want), has_adamw ? 1e-3 : 1e-5)
          << model << " " << name;
    }
    ASSERT_EQ(made.states.size(), expected.states.size());
    for (std::size_t i = 0; i < made.states.size(); ++i) {
      EXPECT_LT(made.states[i]->largest_relative_difference(*expected.states[i]), 1e-4) << model;
    }
  }
}

TEST_P(OptimizersOnMeshes, HoldAndSendWhatIsPlanned) {
  for (const char* model : {"llama", "gpt2"}) {
    const ModelSpec spec = deep_spec(model, 4);
    if (!fits(spec, mesh().request)) continue;
    std::mutex one_at_a_time;
    run_ranks(mesh().ranks(), [&](World& world) {
      RankTraining training(spec, mesh(), batch_on(mesh()), world, optimizer());
      training.run(1);
      MeshTraffic sent = training.mesh().traffic();
      const MemoryStats stats = training.memory().stats();
      StepPlan plan =
          plan_step(spec, RankTraining::build_options(mesh(), batch_on(mesh())), training.plan(),
                    world.rank(), batch_on(mesh()), {.optimizer = optimizer()});
      const std::lock_guard lock(one_at_a_time);
      EXPECT_EQ(stats.peak, plan.memory.peak) << "rank " << world.rank();
      EXPECT_EQ(stats.at_peak, plan.memory.at_peak) << "rank " << world.rank();
      sent.with(plan.traffic, [&](const char* group, CommCounts& own, CommCounts& planned) {
        for (std::size_t op = 0; op < kCommOps; ++op) {
          EXPECT_EQ(own.by_op[op].calls, planned.by_op[op].calls) << group;
          EXPECT_EQ(own.by_op[op].payload_bytes, planned.by_op[op].payload_bytes) << group;
        }
      });
    });
  }
}

std::string text(const CommCounts& counts) {
  const auto& [calls, bytes, wire] = counts.by_op[static_cast<std::size_t>(CommOp::all_to_all)];
  return fmt::format("{} calls, {} bytes", calls, bytes);
}

TEST_P(OptimizersOnMeshes, HoldAndExchangeWhatThePlannersFormulasSay) {
  const bool is_muon = std::holds_alternative<MuonConfig>(optimizer());
  const bool has_state = !optimizer_states(optimizer()).empty();
  const planner::Machine machine =
      planner::read_machine(source_dir() + "/configs/systems/h200-hgx-ndr.toml");
  for (const ModelSpec& spec : grid_specs()) {
    const ParallelRequest& request = mesh().request;
    if (!fits(spec, request)) continue;
    const ParallelPlan plan = make_plan(spec, request, mesh().ranks(), batch_on(mesh()).seq_len,
                                        needs_whole_matrices(optimizer()));
    const planner::Job job{
        .spec = spec,
        .seq_len = batch_on(mesh()).seq_len,
        .batch = kSequencesOfAStep,
        .stack = planner::Stack::heddle(DType::bf16,
                                        is_muon ? planner::Updates::muon : planner::Updates::sgd)};
    const planner::Candidate candidate{plan.request()};
    for (int rank = 0; rank < mesh().ranks(); ++rank) {
      const StepPlan step = plan_step(spec, RankTraining::build_options(mesh(), batch_on(mesh())),
                                      plan, rank, batch_on(mesh()), {.optimizer = optimizer()});
      const planner::RankPart part = part_of(spec, plan, rank);
      const int dp_rank = plan.mesh.coord(Axis::dp, rank),
                tp_rank = plan.mesh.coord(Axis::tp, rank);
      const planner::Volumes volumes(spec, candidate, {.seq_len = job.seq_len}, part,
                                     plan.mesh.coord(Axis::pp, rank), dp_rank);
      const std::int64_t held = volumes.held_elements(1), inner = volumes.held_inner_elements();
      const std::int64_t expected = is_muon     ? 8 * (held - inner) + 4 * inner
                                    : has_state ? 4 * held
                                                : 0;
      EXPECT_EQ(step.before_step[static_cast<std::size_t>(MemoryTag::optimizer)],
                static_cast<std::size_t>(expected))
          << spec.family << " rank " << rank;
      CommCounts exchanged = step.traffic.groups;
      for (const Axis axis : {Axis::dp, Axis::tp}) exchanged += step.traffic.on(axis);
      const auto work =
          planner::matrix_work(machine, job, candidate, planner::dry_blocks(job, candidate),
                               part.blocks, {dp_rank, tp_rank});
      EXPECT_EQ(text(exchanged), text(is_muon ? work.traffic : CommCounts{}))
          << spec.family << " rank " << rank;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Parity, OptimizersOnMeshes,
                         testing::Combine(testing::Range(std::size_t{0}, meshes().size()),
                                          testing::Range(std::size_t{0}, std::size(kOptimizers))),
                         [](const auto& info) {
                           return fmt::format("{}_{}", kOptimizers[std::get<1>(info.param)].name,
                                              name_of(meshes()[std::get<0>(info.param)]));
                         });

}  // namespace
}  // namespace heddle
