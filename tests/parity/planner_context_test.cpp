// Ranks that share sequences, as the planner sees them, against a dry run of the step's own code.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/memory_plan.h"
#include "parity/rank_training.h"
#include "parity/traffic_text.h"
#include "planner/matrix_work.h"
#include "planner/memory.h"
#include "planner/step_units.h"
#include "support/source_dir.h"

namespace heddle {
namespace {

constexpr std::array kMethods = {ContextMethod::ring,     ContextMethod::gather,
                                 ContextMethod::ulysses,  ContextMethod::usp,
                                 ContextMethod::lightseq, ContextMethod::tokenring};

planner::Job job_of(const ModelSpec& spec, const MeshCase& mesh, const BatchShape& batch) {
  return {.spec = spec,
          .seq_len = batch.seq_len,
          .batch = batch.sequences * batch.microbatches * mesh.request.dp,
          .stack = planner::Stack::heddle(DType::f32)};
}

planner::Candidate candidate_of(const MeshCase& mesh, const BatchShape& batch) {
  return {mesh.request, mesh.recompute ? planner::Recompute::full : planner::Recompute::none,
          static_cast<int>(batch.sequences)};
}

/// The meshes, with every method.
std::vector<MeshCase> with_methods(std::initializer_list<MeshCase> meshes) {
  std::vector<MeshCase> all;
  for (const MeshCase& mesh : meshes) {
    for (const ContextMethod method : kMethods) {
      all.push_back(mesh);
      all.back().request.context = method;
    }
  }
  return all;
}

std::string named(const MeshCase& mesh) {
  return fmt::format("{} cp {} {}", name_of(mesh), mesh.request.cp, name_of(mesh.request.context));
}

/// A step's traffic on every kind of rank.
void expect_traffic_of_the_dry_run(const ModelSpec& spec) {
  const planner::Machine machine =
      planner::read_machine(source_dir() + "/configs/systems/h200-hgx-ndr.toml");
  // No length that ranks divide evenly.
  constexpr BatchShape kBatch{.sequences = 2, .seq_len = 27, .microbatches = 3};
  for (const MeshCase& mesh : with_methods({
           MeshCase{{.dp = 1, .cp = 2}},
           MeshCase{{.dp = 1, .cp = 2}, true},
           MeshCase{{.dp = 2, .cp = 2, .zero = 1}},
           MeshCase{{.dp = 2, .cp = 2, .zero = 3}, true},
           MeshCase{{.dp = 1, .tp = 2, .cp = 2, .zero = 2, .sequence = true}},
           MeshCase{{.dp = 1, .pp = 2, .cp = 2, .vocabulary = VocabularyPlacement::pipeline}},
           MeshCase{{.dp = 1, .cp = 4}},
       })) {
    SCOPED_TRACE(named(mesh));
    const planner::Job job = job_of(spec, mesh, kBatch);
    const planner::Candidate candidate = candidate_of(mesh, kBatch);
    const ParallelPlan plan =
        make_plan(spec, mesh.request, static_cast<int>(mesh.request.ranks()), kBatch.seq_len);
    const planner::StepUnits planned = planner::step_units(
        machine, job, candidate, planner::block_cost(machine, job, candidate), plan.rank_of_stage);
    BuildOptions options = RankTraining::build_options(mesh, kBatch);
    options.loss_chunk = job.loss_chunk();
    for (int pp_rank = 0; pp_rank < candidate.pp; ++pp_rank) {
      const int rank = pp_rank * plan.mesh.size(kStageAxes);
      EXPECT_EQ(text(step_traffic(step_schedule(plan, kBatch.microbatches), pp_rank,
                                  planned.ranks[static_cast<std::size_t>(pp_rank)].units,
                                  plan.policy, plan.mesh, planned.sizes)),
                text(plan_step(spec, options, plan, rank, kBatch).traffic))
          << "pp rank " << pp_rank;
    }
  }
}

TEST(PlannersContext, SendsInAStepWhatTheDryRunSends) {
  expect_traffic_of_the_dry_run(deep_spec("llama", 4));
}

TEST(PlannersContext, SendsInAStepOfWindowsWhatTheDryRunSends) {
  expect_traffic_of_the_dry_run(deep_spec("qwen3-window", 4));
}

TEST(PlannersContext, BringsMatricesTogetherAsTheDryRunDoes) {
  const planner::Machine machine =
      planner::read_machine(source_dir() + "/configs/systems/h200-hgx-ndr.toml");
  const ModelSpec spec = deep_spec("llama", 3);
  constexpr BatchShape kBatch{.sequences = 1, .seq_len = 16, .microbatches = 2};
  const auto of_matrices = [](MeshTraffic traffic) {
    std::pair<std::int64_t, std::int64_t> sum;
    traffic.with(traffic, [&](const char*, const CommCounts& counts, const CommCounts&) {
      const auto& [calls, bytes, wire] = counts.by_op[static_cast<std::size_t>(CommOp::all_to_all)];
      sum.first += calls;
      sum.second += bytes;
    });
    return sum;
  };
  for (const MeshCase& mesh :
       {MeshCase{{.dp = 1, .tp = 2, .cp = 2}}, MeshCase{{.dp = 1, .cp = 2, .zero = 1}},
        MeshCase{{.dp = 2, .tp = 2, .cp = 2, .zero = 2}}}) {
    const int ranks = static_cast<int>(mesh.request.ranks());
    const ParallelPlan plan = make_plan(spec, mesh.request, ranks, kBatch.seq_len, true);
    planner::Job job = job_of(spec, mesh, kBatch);
    job.stack = planner::Stack::heddle(DType::f32, planner::Updates::muon);
    const planner::Candidate candidate = candidate_of(mesh, kBatch);
    const planner::DryBlocks dry = planner::dry_blocks(job, candidate);
    for (int rank = 0; rank < ranks; ++rank) {
      const planner::StagePlace place{
          plan.mesh.coord(Axis::dp, rank) * mesh.request.cp + plan.mesh.coord(Axis::cp, rank),
          plan.mesh.coord(Axis::tp, rank)};
      MeshTraffic predicted;
      predicted.groups =
          planner::matrix_work(machine, job, candidate, dry, spec.layers, place).traffic;
      const StepPlan step = plan_step(spec, RankTraining::build_options(mesh, kBatch), plan, rank,
                                      kBatch, {.optimizer = MuonConfig{}});
      EXPECT_GT(of_matrices(predicted).first, 0);
      EXPECT_EQ(of_matrices(predicted), of_matrices(step.traffic)) << named(mesh) << " " << rank;
    }
  }
}

/// A model of a size at which activations and parameters both count.
ModelSpec medium_spec() {
  ModelSpec spec = deep_spec("llama", 8);
  spec.hidden = 1024;
  spec.heads = 16;
  spec.kv_heads = 8;
  spec.head_dim = 64;
  spec.ffn = 2816;
  spec.vocab = 32000;
  spec.max_positions = 4096;
  spec.rope->dims = 64;
  return spec;
}

/// What the fullest rank holds: planned by a dry run, estimated by the closed form.
struct Held {
  double planned = 0, estimated = 0;
};

Held held(const ModelSpec& spec, const MeshCase& mesh, const BatchShape& batch) {
  const int ranks = static_cast<int>(mesh.request.ranks());
  const ParallelPlan plan = make_plan(spec, mesh.request, ranks, batch.seq_len);
  const BuildOptions options{.positions = batch.seq_len, .recompute_blocks = mesh.recompute};
  Held held;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto peak = plan_step(spec, options, plan, rank, batch).memory.peak;
    held.planned = std::max(held.planned, static_cast<double>(peak));
  }
  const planner::Job job = job_of(spec, mesh, batch);
  const planner::Candidate candidate = candidate_of(mesh, batch);
  const auto split = planner::split_blocks(job, candidate.schedule, candidate.pp, candidate.chunks,
                                           candidate.vocabulary);
  held.estimated =
      planner::estimate_memory({}, job, candidate, split, planner::activations(job, candidate))
          .total();
  return held;
}

TEST(PlannersContext, HoldsAboutWhatTheDryRunHolds) {
  for (const MeshCase& mesh : with_methods({
           MeshCase{{.dp = 1, .cp = 2}},
           MeshCase{{.dp = 1, .cp = 4}, true},
           MeshCase{{.dp = 1, .cp = 4, .zero = 3}},
           MeshCase{{.dp = 1, .tp = 2, .cp = 2, .zero = 1, .sequence = true}, true},
           MeshCase{{.dp = 1, .pp = 2, .cp = 4}},
       })) {
    const auto [planned, estimated] =
        held(medium_spec(), mesh, {.sequences = 1, .seq_len = 4096, .microbatches = 4});
    EXPECT_GE(estimated, 0.97 * planned) << named(mesh);
    EXPECT_LE(estimated, 1.25 * planned) << named(mesh);
  }
}

/// Where activations are nearly all there is, and attention's buffers count.
TEST(PlannersContext, HoldsAboutWhatTheDryRunHoldsOfLongSequences) {
  ModelSpec spec = medium_spec();
  spec.vocab = 1000;
  spec.max_positions = 32768;
  for (const MeshCase& mesh : with_methods({
           MeshCase{{.dp = 1, .cp = 8}},
           MeshCase{{.dp = 1, .cp = 8, .zero = 1}, true},
           MeshCase{{.dp = 1, .tp = 2, .cp = 4, .zero = 1, .sequence = true}, true},
       })) {
    const auto [planned, estimated] =
        held(spec, mesh, {.sequences = 1, .seq_len = 32768, .microbatches = 2});
    EXPECT_GE(estimated, 0.97 * planned) << named(mesh);
    EXPECT_LE(estimated, 1.25 * planned) << named(mesh);
  }
}

}  // namespace
}  // namespace heddle
