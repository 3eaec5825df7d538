#include "parity/volumes.h"

#include <gtest/gtest.h>

#include "planner/collectives.h"
#include "planner/measured_rows.h"

namespace heddle::planner {
namespace {

/// A published run and what one of its ranks communicates in a step, in 16 bits.
struct Published {
  const char* name;
  std::int64_t hidden, heads, layers;
  int tp, pp, dp, batch, sequences, chunks;
  std::int64_t calls, calls_recomputing, message_bytes, sends;
  double tp_wire_gb, gradient_gb, dp_wire_gb;
};

constexpr Published kRuns[] = {
    {"175B", 12288, 96, 96, 8, 8, 1, 64, 1, 3, 3072, 4608, 50331648, 384, 270.6, 5.44, 0},
    {"530B", 20480, 128, 105, 8, 35, 1, 280, 1, 3, 3360, 5040, 83886080, 1680, 493.3, 3.77, 0},
    {"1T", 25600, 160, 128, 8, 64, 6, 3072, 1, 1, 4096, 6144, 104857600, 1024, 751.6, 3.93, 6.55},
    {"39B", 8192, 64, 48, 8, 2, 32, 1536, 4, 1, 1152, 1728, 134217728, 12, 270.6, 4.83, 9.36},
};

/// Loss, squared norm and whether a rank asks for something (and what a block takes each rank, 8
/// bytes of each), and on dp the number of targets.
constexpr std::int64_t kNormCalls = 1, kNormBytes = 24, kTargetBytes = 8;

CommCounts::Entry entry(const CommCounts& counts, CommOp op) {
  return counts.by_op[static_cast<std::size_t>(op)];
}

TEST(Volumes, OfPublishedRunsAreTheKnownOnes) {
  for (const Published& run : kRuns) {
    SCOPED_TRACE(run.name);
    const ModelSpec spec = gpt_spec(run.hidden, run.heads, run.layers, 2048);
    Candidate plan{{.dp = run.dp,
                    .tp = run.tp,
                    .pp = run.pp,
                    .schedule = run.chunks > 1 ? Pipeline::interleaved : Pipeline::one_f_one_b,
                    .chunks = run.chunks},
                   Recompute::none,
                   run.sequences};
    const StepShape step{.seq_len = 2048,
                         .microbatches = run.batch / run.dp / run.sequences,
                         .element_bytes = 2,
                         .gradient_bytes = 2};
    // The blocks of an inner stage; a pipeline of two has none and is seen from its first.
    const RankPart part{.blocks = run.layers / run.pp};
    const int rank = run.pp > 2 ? 1 : 0;
    const Volumes volumes(spec, plan, step, part, rank);

    const auto on_tp = entry(volumes.on_tp(), CommOp::all_reduce);
    EXPECT_EQ(on_tp.calls, run.calls + kNormCalls);
    const std::int64_t norm_bytes = kNormBytes + 8 * run.dp * run.tp * run.pp;
    EXPECT_EQ(on_tp.payload_bytes, run.calls * run.message_bytes + norm_bytes);
    EXPECT_NEAR(1e-9 * ring_wire_bytes(CommOp::all_reduce, run.tp,
                                       static_cast<double>(on_tp.payload_bytes)),
                run.tp_wire_gb, 0.05);
    const auto sends = entry(volumes.on_pp(), CommOp::send);
    EXPECT_EQ(sends.calls, run.sends);
    EXPECT_EQ(sends.payload_bytes, run.sends * run.message_bytes);
    const auto on_dp = entry(volumes.on_dp(), CommOp::all_reduce);
    const double gradients = 2e-9 * static_cast<double>(volumes.held_elements(2));
    EXPECT_NEAR(gradients, run.gradient_gb, 0.002 * run.gradient_gb);
    if (run.dp > 1) {
      EXPECT_NEAR(1e-9 * static_cast<double>(on_dp.payload_bytes - norm_bytes - kTargetBytes),
                  gradients, 1e-9);
      EXPECT_NEAR(ring_wire_bytes(CommOp::all_reduce, run.dp, gradients), run.dp_wire_gb, 0.01);
    }

    plan.recompute = Recompute::full;
    EXPECT_EQ(entry(Volumes(spec, plan, step, part, rank).on_tp(), CommOp::all_reduce).calls,
              run.calls_recomputing + kNormCalls);
    plan.sequence = true;
    EXPECT_EQ(Volumes(spec, plan, step, part, rank).message_bytes(), run.message_bytes / run.tp);
  }
}

TEST(Volumes, OfZeroAreInTheirKnownProportions) {
  ModelSpec spec = gpt_spec(1024, 16, 24, 1024);
  spec.tied_embeddings = false;  // or the table would be gathered twice
  const auto bytes = [&](int zero, std::int64_t microbatches) {
    const Candidate plan{{.dp = 8, .zero = zero}};
    const StepShape step{.seq_len = 1024, .microbatches = microbatches};
    const CommCounts counts = Volumes(spec, plan, step, {.blocks = 24}, 0).on_dp();
    double wire = 0;
    for (int op = 0; op < kCommOps; ++op) {
      wire += ring_wire_bytes(
          static_cast<CommOp>(op), 8,
          static_cast<double>(entry(counts, static_cast<CommOp>(op)).payload_bytes));
    }
    return wire;
  };
  EXPECT_NEAR(bytes(1, 4) / bytes(0, 4), 1.0, 1e-6);
  EXPECT_NEAR(bytes(2, 4) / bytes(0, 4), (4 + 1) / 2.0, 1e-6);
  EXPECT_NEAR(bytes(3, 1) / bytes(0, 1), 1.5, 1e-6);
  EXPECT_NEAR(bytes(3, 4) / bytes(0, 4), 1.5 * 4, 1e-6);
}

}  // namespace
}  // namespace heddle::planner
