// Steps of which codecs' bytes travel: what is sent and held is what is predicted, replicas stay
// replicas, and where codecs lose nothing, nothing changes.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <mutex>

#include "comm/threads/thread_world.h"
#include "parity/rank_training.h"
#include "parity/traffic_text.h"
#include "parity/whole_tensors.h"
#include "planner/block_cost.h"
#include "planner/step_units.h"
#include "support/source_dir.h"

namespace heddle {
namespace {

constexpr BatchShape kBatch{.sequences = 2, .seq_len = 13, .microbatches = 3};

/// All kinds of traffic with one codec each, and buckets below and above `min_bytes`.
const std::vector<Compression>& mixes() {
  static const std::vector<Compression> all = {
      {.gradients = "int8:128", .min_bytes = 0},
      {.gradients = "zfp:8",
       .weights = "bf16",
       .tensor = "int8:32",
       .pipeline = "fp8",
       .min_bytes = 0},
      {.gradients = "sign",
       .weights = "int8",
       .tensor = "bf16",
       .pipeline = "int4",
       .min_bytes = 0},
      {.preset = "naive", .min_bytes = 0},
      {.gradients = "topk:8:64", .tensor = "zfp:16", .pipeline = "e3m0", .min_bytes = 6000},
      {.preset = "zhybrid", .min_bytes = 1000}};
  return all;
}

struct CodedMesh {
  MeshCase mesh;
  ModelSpec spec;
};

/// Every mesh of the grids, with the mixes and the models in turn.
std::vector<CodedMesh> coded_meshes() {
  std::vector<CodedMesh> all;
  const std::vector<ModelSpec> specs = grid_specs();
  const auto add = [&](MeshCase mesh) {
    const std::size_t i = all.size();
    mesh.compress = mixes()[i % mixes().size()];
    for (std::size_t j = 0; j < specs.size(); ++j) {
      const ModelSpec& spec = specs[(i + j) % specs.size()];
      if (!fits(spec, mesh.request)) continue;
      all.push_back({mesh, spec});
      return;
    }
  };
  for (const MeshCase& mesh : mesh_cases()) add(mesh);
  for (const MeshCase& mesh : context_cases()) {
    if (mesh.request.dp > 1 || mesh.request.pp > 1 || mesh.request.tp > 1) add(mesh);
  }
  return all;
}

ParallelPlan plan_of(const CodedMesh& coded) {
  return make_plan(coded.spec, coded.mesh.request, coded.mesh.ranks(), kBatch.seq_len, false,
                   coded.mesh.compress);
}

StepPlan planned(const CodedMesh& coded, int rank) {
  return plan_step(coded.spec, RankTraining::build_options(coded.mesh, kBatch), plan_of(coded),
                   rank, kBatch);
}

/// By the list of a step and the planner's sizes, without the code that communicates.
MeshTraffic told(const CodedMesh& coded, int pp_rank) {
  const planner::Machine machine =
      planner::read_machine(source_dir() + "/configs/systems/h200-hgx-ndr.toml");
  const ParallelRequest& request = coded.mesh.request;
  planner::Job job{.spec = coded.spec,
                   .seq_len = kBatch.seq_len,
                   .batch = kBatch.sequences * kBatch.microbatches * request.dp,
                   .stack = planner::Stack::heddle(DType::f32)};
  job.compress = coded.mesh.compress;
  job.stack.loss_chunk = RankTraining::build_options(coded.mesh, kBatch).loss_chunk;
  const planner::Candidate candidate{
      request, coded.mesh.recompute ? planner::Recompute::full : planner::Recompute::none,
      static_cast<int>(kBatch.sequences)};
  const ParallelPlan plan = plan_of(coded);
  const planner::StepUnits units = planner::step_units(
      machine, job, candidate, planner::block_cost(machine, job, candidate), plan.rank_of_stage);
  return step_traffic(step_schedule(plan, kBatch.microbatches), pp_rank,
                      units.ranks[static_cast<std::size_t>(pp_rank)].units, plan.policy, plan.mesh,
                      units.sizes);
}

CommCounts::Entry total(MeshTraffic traffic) {
  CommCounts::Entry sum;
  traffic.with(traffic, [&](const char*, const CommCounts& counts, const CommCounts&) {
    for (const auto& [calls, payload, wire] : counts.by_op) sum.add(calls, payload, wire);
  });
  return sum;
}

/// What one step sends.
MeshTraffic run_counted(RankTraining& training) {
  MeshTraffic before = training.mesh().traffic();
  training.memory().reset_peak();
  training.run(1);
  MeshTraffic after = training.mesh().traffic();
  after.with(before, [](const char*, CommCounts& own, const CommCounts& other) {
    for (std::size_t op = 0; op < kCommOps; ++op) {
      const auto& [calls, payload, wire] = other.by_op[op];
      own.by_op[op].add(-calls, -payload, -wire);
    }
  });
  return after;
}

TEST(CompressedSteps, SendAndHoldWhatIsPredictedOnEveryMesh) {
  const std::vector<CodedMesh> all = coded_meshes();
  ASSERT_GE(all.size(), 40u);
  RecordProperty("meshes", static_cast<int>(all.size()));
  std::size_t with_less = 0;
  for (const CodedMesh& coded : all) {
    SCOPED_TRACE(fmt::format("{} {} {}", name_of(coded.mesh), coded.spec.family,
                             coded.mesh.compress.text()));
    std::mutex one_at_a_time;
    run_ranks(coded.mesh.ranks(), [&](World& world) {
      RankTraining training(coded.spec, coded.mesh, kBatch, world);
      const MeshTraffic traffic = run_counted(training);
      const MemoryStats stats = training.memory().stats();
      const StepPlan plan = planned(coded, world.rank());
      const std::lock_guard lock(one_at_a_time);
      EXPECT_EQ(text(traffic), text(plan.traffic)) << "rank " << world.rank();
      EXPECT_EQ(stats.at_peak, plan.memory.at_peak) << "rank " << world.rank();
      if (world.rank() > 0) return;
      EXPECT_EQ(text(told(coded, 0)), text(traffic));
      if (total(traffic).wire_bytes < total(traffic).payload_bytes) ++with_less;
    });
    if (HasFailure()) break;
  }
  EXPECT_GE(with_less, 40u);
}

/// What two steps make of a model.
struct Trained {
  std::vector<std::uint64_t> losses, norms;  // bits
  std::unique_ptr<WholeTensors> values = std::make_unique<WholeTensors>();
};

Trained train(const MeshCase& mesh) {
  Trained made;
  const ModelSpec spec = deep_spec("llama", 4);
  run_ranks(mesh.ranks(), [&](World& world) {
    RankTraining training(spec, mesh, kBatch, world);
    const StepResult results[] = {training.run(1), training.run(2)};
    made.values->gather(training.model().store().value_pieces(), world);
    if (world.rank() > 0) return;
    for (const StepResult& result : results) {
      made.losses.push_back(std::bit_cast<std::uint64_t>(result.loss));
      made.norms.push_back(std::bit_cast<std::uint64_t>(result.grad_norm));
    }
  });
  return made;
}

void expect_same_as_plain(MeshCase mesh, const Compression& compression) {
  const Trained plain = train(mesh);
  mesh.compress = compression;
  const Trained coded = train(mesh);
  SCOPED_TRACE(name_of(mesh));
  EXPECT_EQ(coded.losses, plain.losses);
  EXPECT_EQ(coded.norms, plain.norms);
  EXPECT_EQ(coded.values->first_difference(*plain.values), "");
}

TEST(CompressedSteps, AreThePlainOnesBitForBitWithCodecNone) {
  const Compression none{.gradients = "none",
                         .weights = "none",
                         .tensor = "none",
                         .pipeline = "none",
                         .preset = "naive",
                         .min_bytes = 0};
  for (int zero = 0; zero < 4; ++zero) {
    expect_same_as_plain({{.dp = 2, .tp = 2, .pp = 2, .zero = zero, .sequence = true}}, none);
  }
}

TEST(CompressedSteps, AreThePlainOnesBitForBitWhereNothingIsLost) {
  const Compression lossless{
      .weights = "lossless", .tensor = "lossless", .pipeline = "lossless", .min_bytes = 0};
  for (int zero = 1; zero < 4; ++zero) {
    expect_same_as_plain({{.dp = 2, .pp = 2, .zero = zero}}, lossless);
  }
  expect_same_as_plain({{.dp = 2, .tp = 2, .zero = 1, .sequence = true}}, lossless);
  expect_same_as_plain({{.dp = 1, .tp = 2, .pp = 2, .schedule = Pipeline::zb_v}}, lossless);
}

TEST(CompressedSteps, SendAtMostWhatIsPredictedWithALosslessCodec) {
  CodedMesh coded{{{.dp = 2, .tp = 2, .pp = 2, .zero = 3, .sequence = true}},
                  deep_spec("llama", 4)};
  coded.mesh.compress = {.preset = "mzhybrid", .min_bytes = 0};
  run_ranks(coded.mesh.ranks(), [&](World& world) {
    RankTraining training(coded.spec, coded.mesh, kBatch, world);
    const CommCounts::Entry sent = total(run_counted(training));
    const CommCounts::Entry said = total(planned(coded, world.rank()).traffic);
    EXPECT_EQ(sent.calls, said.calls);
    EXPECT_EQ(sent.payload_bytes, said.payload_bytes);
    EXPECT_LT(sent.wire_bytes, said.wire_bytes);
    EXPECT_LE(training.memory().stats().peak, planned(coded, world.rank()).memory.peak);
    if (world.rank() > 0) return;
    const CommCounts::Entry by_list = total(told(coded, 0));
    EXPECT_EQ(by_list, said);
  });
}

std::uint64_t hash_of_values(const ParamStore& store) {
  std::uint64_t hash = 14695981039346656037ULL;
  for (const Parameter* parameter : store.parameters()) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(parameter->value.bytes());
    for (std::size_t i = 0; i < parameter->value.size_bytes(); ++i) {
      hash = (hash ^ bytes[i]) * 1099511628211ULL;
    }
  }
  return hash;
}

TEST(CompressedSteps, LeaveReplicasEqualBitForBit) {
  for (const char* codec : {"int8", "int4", "fp8", "bf16", "zfp:8"}) {
    for (int zero = 0; zero < 3; ++zero) {
      MeshCase mesh{{.dp = 3, .zero = zero}};
      mesh.compress = {.gradients = codec, .weights = codec, .min_bytes = 0};
      std::vector<std::uint64_t> hashes(3);
      std::vector<double> losses(3);
      run_ranks(3, [&](World& world) {
        RankTraining training(deep_spec("llama", 2), mesh, kBatch, world);
        for (int step = 1; step < 4; ++step) {
          losses[static_cast<std::size_t>(world.rank())] = training.run(step).loss;
        }
        hashes[static_cast<std::size_t>(world.rank())] = hash_of_values(training.model().store());
      });
      EXPECT_EQ(hashes, std::vector(3, hashes[0])) << codec << " zero " << zero;
      EXPECT_EQ(losses, std::vector(3, losses[0])) << codec << " zero " << zero;
    }
  }
}

/// The gradients of a step, as a plain step and one with a codec make them.
double gradient_error(int dp, int zero, const char* codec) {
  const auto gradients = [&](const Compression& compression) {
    auto made = std::make_unique<WholeTensors>();
    MeshCase mesh{{.dp = dp, .zero = zero}};
    mesh.compress = compression;
    run_ranks(dp, [&](World& world) {
      RankTraining training(deep_spec("llama", 2), mesh, kBatch, world);
      training.gradients();
      made->gather(training.model().store().grad_pieces(), world);
    });
    return made;
  };
  const auto exact = gradients({}), coded = gradients({.gradients = codec, .min_bytes = 0});
  double off = 0, size = 0;
  for (const auto& [name, values] : exact->by_name()) {
    const auto& others = coded->by_name().at(name);
    for (std::size_t i = 0; i < values.size(); ++i) {
      off += std::pow(values[i] - others[i], 2);
      size += std::pow(values[i], 2);
    }
  }
  return std::sqrt(off / size);
}

TEST(CompressedSteps, LoseOfGradientsWhatOneOrTwoEncodingsDoWhateverTheNumberOfRanks) {
  const double two = gradient_error(2, 0, "int8"), eight = gradient_error(8, 0, "int8");
  EXPECT_GT(two, 0.001);
  EXPECT_LT(two, 0.02);
  EXPECT_NEAR(eight / two, 1.0, 0.25);
  EXPECT_NEAR(gradient_error(8, 1, "int8") / gradient_error(2, 1, "int8"), 1.0, 0.25);
  EXPECT_LT(gradient_error(8, 1, "int8"), 0.85 * eight);
}

TEST(CompressedSteps, OverlapWithoutChangingABit) {
  for (int zero = 0; zero < 4; ++zero) {
    MeshCase mesh{{.dp = 2, .zero = zero}};
    mesh.compress = {.gradients = "int4", .weights = "int8", .min_bytes = 0};
    const Trained with = train(mesh);
    mesh.request.overlap = false;
    const Trained without = train(mesh);
    EXPECT_EQ(with.losses, without.losses) << "zero " << zero;
    EXPECT_EQ(with.values->first_difference(*without.values), "") << "zero " << zero;
  }
}

/// One rank's gradients of a unit become infinite, which no loss shows.
TEST(CompressedSteps, AreSkippedByAllRanksWhenOneHasValuesThatAreNotFinite) {
  for (int zero = 0; zero < 4; ++zero) {
    MeshCase mesh{{.dp = 2, .zero = zero}};
    mesh.compress = {.gradients = "int8", .min_bytes = 0};
    run_ranks(2, [&](World& world) {
      RankTraining training(deep_spec("llama", 3), mesh, kBatch, world);
      bool spoils = world.rank() == 1;
      training.step().watch([&](const std::string& label, int microbatch, TrainStep::Pass pass,
                                const Tensor& made) {
        if (!spoils || pass != TrainStep::Pass::backward || label != "block 2" || microbatch != 1)
          return;
        made.host<float>()[3] = INFINITY;
      });
      const StepResult spoiled = training.run(1);
      EXPECT_FALSE(spoiled.is_finite) << "zero " << zero << ", rank " << world.rank();
      EXPECT_TRUE(std::isfinite(spoiled.loss));
      spoils = false;
      EXPECT_TRUE(training.run(1).is_finite) << "zero " << zero << ", rank " << world.rank();
    });
  }
}

}  // namespace
}  // namespace heddle
