#include <gtest/gtest.h>

#include "engine/memory_plan.h"
#include "parity/rank_training.h"
#include "planner/memory.h"

namespace heddle {
namespace {

/// A model of a size at which activations and parameters both count.
ModelSpec medium_spec() {
  ModelSpec spec = deep_spec("llama", 16);
  spec.hidden = 1024;
  spec.heads = spec.kv_heads = 16;
  spec.head_dim = 64;
  spec.ffn = 2816;
  spec.vocab = 32000;
  spec.max_positions = 1024;
  spec.rope->dims = 64;
  return spec;
}

constexpr BatchShape kBatch{.sequences = 2, .seq_len = 1024, .microbatches = 16};

/// The peak of the fullest rank, by a dry run of the step's own code.
double planned_bytes(const ModelSpec& spec, const MeshCase& mesh, const BatchShape& batch) {
  const ParallelPlan plan = make_plan(spec, mesh.request, mesh.ranks(), batch.seq_len);
  const BuildOptions options{.positions = batch.seq_len, .recompute_blocks = mesh.recompute};
  double most = 0.0;
  for (int rank = 0; rank < mesh.ranks(); ++rank) {
    const auto peak = plan_step(spec, options, plan, rank, batch).memory.peak;
    most = std::max(most, static_cast<double>(peak));
  }
  return most;
}

double estimated_bytes(const ModelSpec& spec, const MeshCase& mesh, const BatchShape& batch) {
  const ParallelRequest& request = mesh.request;
  const planner::Job job{.spec = spec,
                         .seq_len = batch.seq_len,
                         .batch = batch.sequences * batch.microbatches * request.dp,
                         .stack = planner::Stack::heddle(DType::f32)};
  const planner::Candidate candidate{
      request, mesh.recompute ? planner::Recompute::full : planner::Recompute::none,
      static_cast<int>(batch.sequences)};
  const auto split = planner::split_blocks(job, candidate.schedule, candidate.pp, candidate.chunks,
                                           candidate.vocabulary);
  const auto kept = planner::activations(job, candidate);
  return planner::estimate_memory({}, job, candidate, split, kept).total();
}

TEST(PlannersMemory, IsNearWhatTheStepWillHold) {
  const ModelSpec spec = medium_spec();
  for (const MeshCase& mesh : {
           MeshCase{{.dp = 1}},
           MeshCase{{.dp = 1}, true},
           MeshCase{{.dp = 2, .zero = 1}},
           MeshCase{{.dp = 4, .zero = 2}},
           MeshCase{{.dp = 4, .zero = 3}},
           MeshCase{{.dp = 1, .tp = 2}},
           MeshCase{{.dp = 1, .tp = 4, .sequence = true}},
           MeshCase{{.dp = 1, .pp = 4}},
           MeshCase{{.dp = 1, .pp = 4, .schedule = Pipeline::zb_v}},
           MeshCase{{.dp = 1, .pp = 4, .schedule = Pipeline::v_half}},
           MeshCase{{.dp = 1, .pp = 4, .schedule = Pipeline::interleaved, .chunks = 2}},
           MeshCase{{.dp = 1, .pp = 4, .schedule = Pipeline::zb_h2}},
           MeshCase{{.dp = 1, .pp = 4, .vocabulary = VocabularyPlacement::pipeline}},
           MeshCase{{.dp = 2, .tp = 2, .pp = 2, .zero = 3, .sequence = true}, true},
           MeshCase{{.dp = 2,
           .tp = 2,
           .pp = 2,
           .zero = 1,
           .sequence = true,
           .schedule = Pipeline::zb_h1}},
       }) {
    const double planned = planned_bytes(spec, mesh, kBatch),
                 estimated = estimated_bytes(spec, mesh, kBatch);
    EXPECT_GE(estimated, 0.97 * planned) << name_of(mesh);
    EXPECT_LE(estimated, 1.25 * planned) << name_of(mesh);
  }
}

/// Where the inside of an MLP is never there for all tokens.
TEST(PlannersMemory, OfALongSequenceIsNearWhatTheStepWillHold) {
  const ModelSpec spec = medium_spec();
  for (const MeshCase& mesh :
       {MeshCase{{.dp = 1}, true}, MeshCase{{.dp = 1, .tp = 2, .sequence = true}, true}}) {
    const BatchShape one{.sequences = 1, .seq_len = 262144, .microbatches = 1};
    const double planned = planned_bytes(spec, mesh, one),
                 estimated = estimated_bytes(spec, mesh, one);
    EXPECT_GE(estimated, 0.97 * planned) << name_of(mesh);
    EXPECT_LE(estimated, 1.25 * planned) << name_of(mesh);
  }
}

}  // namespace
}  // namespace heddle
