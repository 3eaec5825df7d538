#include <fmt/format.h>
#include <gtest/gtest.h>

#include <mutex>

#include "comm/threads/thread_world.h"
#include "parity/rank_part.h"
#include "parity/rank_training.h"
#include "parity/volumes.h"
#include "planner/step_units.h"
#include "support/source_dir.h"

namespace heddle {
namespace {

constexpr BatchShape kBatch{.sequences = 2, .seq_len = 13, .microbatches = 3};

/// One line per operation, so that a difference reads well.
std::string text(const CommCounts& counts) {
  std::string lines;
  for (int op = 0; op < kCommOps; ++op) {
    const auto& [calls, bytes, wire] = counts.by_op[static_cast<std::size_t>(op)];
    if (calls == 0) continue;
    lines += fmt::format("{} {} calls {} bytes; ", name_of(static_cast<CommOp>(op)), calls, bytes);
  }
  return lines;
}

struct Traffic {
  std::string tp, dp, pp, copies, ends, lanes;
  friend bool operator==(const Traffic&, const Traffic&) = default;
};

void PrintTo(const Traffic& t, std::ostream* out) {
  *out << "\n  tp: " << t.tp << "\n  dp: " << t.dp << "\n  pp: " << t.pp
       << "\n  copies: " << t.copies << "\n  ends: " << t.ends << "\n  lanes: " << t.lanes;
}

Traffic text(const MeshTraffic& traffic) {
  const auto on = [&](Axis axis) { return text(traffic.on(axis)); };
  return {on(Axis::tp),   on(Axis::dp),       on(Axis::pp),
          on(Axis::copy), text(traffic.ends), text(traffic.lanes)};
}

Traffic by_formula(const planner::Volumes& formulas) {
  return {text(formulas.on_tp()),        text(formulas.on_dp()),
          text(formulas.on_pp()),        text(formulas.between_copies()),
          text(formulas.between_ends()), text(formulas.on_lanes())};
}

/// The mesh as the planner sees it.
planner::Candidate candidate_of(const MeshCase& mesh) {
  return {mesh.request, mesh.recompute ? planner::Recompute::full : planner::Recompute::none,
          static_cast<int>(kBatch.sequences)};
}

class MeshGrid : public testing::TestWithParam<MeshCase> {
 protected:
  template <class Check>
  void for_each_model(const Check& check) {
    int models = 0;
    for (const ModelSpec& spec : grid_specs()) {
      if (!fits(spec, GetParam().request)) continue;
      SCOPED_TRACE(spec.family);
      check(spec);
      ++models;
    }
    EXPECT_GT(models, 0);
  }

  static ParallelPlan plan(const ModelSpec& spec) {
    return make_plan(spec, GetParam().request, GetParam().ranks(), kBatch.seq_len);
  }
  static BuildOptions options() { return RankTraining::build_options(GetParam(), kBatch); }
  static StepPlan step_plan(const ModelSpec& spec, int rank) {
    return plan_step(spec, options(), plan(spec), rank, kBatch);
  }
  static planner::Volumes formulas(const ModelSpec& spec, int rank) {
    const ParallelPlan plan = MeshGrid::plan(spec);
    return {spec,
            candidate_of(GetParam()),
            {.seq_len = kBatch.seq_len,
             .microbatches = kBatch.microbatches,
             .loss_chunk = options().loss_chunk},
            part_of(spec, plan, rank),
            plan.mesh.coord(Axis::pp, rank),
            plan.mesh.coord(Axis::dp, rank)};
  }
};

std::int64_t live(const BytesByTag& bytes, MemoryTag tag) {
  return static_cast<std::int64_t>(bytes[static_cast<std::size_t>(tag)]);
}

/// Cosines and sines for half the dimensions that rotate, kept with the blocks.
std::int64_t rope_bytes(const ModelSpec& spec) {
  if (!spec.rope) return 0;
  const std::int64_t table = kBatch.seq_len * spec.rope->dims / 2 * 4;
  return 2 * static_cast<std::int64_t>(Memory::rounded_bytes(static_cast<std::size_t>(table)));
}

TEST_P(MeshGrid, PredictsTheTrafficOfTheFormulas) {
  for_each_model([&](const ModelSpec& spec) {
    for (int rank = 0; rank < GetParam().ranks(); ++rank) {
      EXPECT_EQ(text(step_plan(spec, rank).traffic), by_formula(formulas(spec, rank)))
          << "rank " << rank;
    }
  });
}

/// The planner's units are those of the runtime, and what it counts is what the runtime sends.
TEST_P(MeshGrid, TellsTheStepThatRuns) {
  const planner::Machine machine =
      planner::read_machine(source_dir() + "/configs/systems/h200-hgx-ndr.toml");
  for_each_model([&](const ModelSpec& spec) {
    planner::Job job{.spec = spec,
                     .seq_len = kBatch.seq_len,
                     .batch = kBatch.sequences * kBatch.microbatches * GetParam().request.dp,
                     .stack = planner::Stack::heddle(DType::f32)};
    job.stack.loss_chunk = options().loss_chunk;
    const planner::Candidate candidate = candidate_of(GetParam());
    const ParallelPlan plan = MeshGrid::plan(spec);
    const planner::StepUnits planned = planner::step_units(
        machine, job, candidate, planner::block_cost(machine, job, candidate), plan.rank_of_stage);
    for (int pp_rank = 0; pp_rank < candidate.pp; ++pp_rank) {
      SCOPED_TRACE(fmt::format("pp rank {}", pp_rank));
      RankUnits units = planned.ranks[static_cast<std::size_t>(pp_rank)].units;
      const int rank = pp_rank * candidate.dp * candidate.tp;
      EXPECT_EQ(text(step_traffic(step_schedule(plan, kBatch.microbatches), pp_rank, units,
                                  plan.policy, plan.mesh, planned.sizes)),
                text(step_plan(spec, rank).traffic));
      Memory nothing(Memory::Mode::dry);
      const Mesh mesh = Mesh::recorded(plan.mesh, rank);
      const Model model(spec, options(), plan, mesh, ParamStore::Purpose::training, nothing);
      for (RankUnits::Unit& unit : units.units) unit.in_f = unit.in_b = {};
      EXPECT_EQ(units, model.units());
    }
  });
}

TEST_P(MeshGrid, SendsAndHoldsWhatIsPredicted) {
  for_each_model([&](const ModelSpec& spec) {
    std::mutex one_at_a_time;
    run_ranks(GetParam().ranks(), [&](World& world) {
      RankTraining training(spec, GetParam(), kBatch, world);
      training.run(1);
      const Traffic traffic = text(training.mesh().traffic());
      const MemoryStats stats = training.memory().stats();
      const StepPlan plan = step_plan(spec, world.rank());
      const std::lock_guard lock(one_at_a_time);
      EXPECT_EQ(traffic, text(plan.traffic)) << "rank " << world.rank();
      EXPECT_EQ(stats.peak, plan.memory.peak) << "rank " << world.rank();
      EXPECT_EQ(stats.at_peak, plan.memory.at_peak) << "rank " << world.rank();
    });
  });
}

TEST_P(MeshGrid, HoldsTheBytesOfTheZeroFormulas) {
  for_each_model([&](const ModelSpec& spec) {
    for (int rank = 0; rank < GetParam().ranks(); ++rank) {
      const BytesByTag held = step_plan(spec, rank).before_step;
      const planner::Volumes expected = formulas(spec, rank);
      const bool has_blocks = part_of(spec, plan(spec), rank).blocks > 0;
      EXPECT_EQ(live(held, MemoryTag::parameters),
                4 * expected.held_elements(3) + (has_blocks ? rope_bytes(spec) : 0));
      EXPECT_EQ(live(held, MemoryTag::gradients), 4 * expected.held_elements(2));
      EXPECT_EQ(live(held, MemoryTag::optimizer), 8 * expected.held_elements(1));
      EXPECT_EQ(live(held, MemoryTag::activations), 0);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Parity, MeshGrid, testing::ValuesIn(mesh_cases()),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace heddle
