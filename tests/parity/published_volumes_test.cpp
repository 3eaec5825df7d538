#include <gtest/gtest.h>

#include "engine/memory_plan.h"
#include "parity/rank_training.h"

namespace heddle {
namespace {

/// A published training run and what one of its ranks communicates in a step, worked out by hand
/// from the number of layers and micro-batches. Bytes are those of 16-bit numbers.
struct PublishedRun {
  const char* name;
  std::int64_t layers, hidden, heads;
  int tp, pp, dp, chunks;
  BatchShape batch;
  std::int64_t tp_calls, tp_calls_recomputing, message_bytes, sends;
  double gradient_gigabytes;  ///< of an inner stage
};

constexpr std::int64_t kSequence = 2048;
/// The plan is for 32-bit numbers.
constexpr std::int64_t kWider = 2;

const PublishedRun kRuns[] = {
    {"175B", 96, 12288, 96, 8, 8, 1, 3, {1, kSequence, 64}, 3072, 4608, 50331648, 384, 5.44},
    {"530B", 105, 20480, 128, 8, 35, 1, 3, {1, kSequence, 280}, 3360, 5040, 83886080, 1680, 3.77},
    {"1T", 128, 25600, 160, 8, 64, 6, 1, {1, kSequence, 512}, 4096, 6144, 104857600, 1024, 3.93},
};

ModelSpec spec_of(const PublishedRun& run) {
  ModelSpec spec = deep_spec("gpt2", run.layers);
  spec.hidden = run.hidden;
  spec.heads = spec.kv_heads = run.heads;
  spec.head_dim = run.hidden / run.heads;
  spec.ffn = 4 * run.hidden;
  spec.vocab = 51200;
  spec.max_positions = kSequence;
  return spec;
}

/// The step of a rank of the second stage.
StepPlan plan(const PublishedRun& run, bool recompute, bool sequence) {
  const ModelSpec spec = spec_of(run);
  const int ranks = run.tp * run.pp * run.dp;
  const ParallelRequest request{
      .dp = run.dp,
      .tp = run.tp,
      .pp = run.pp,
      .sequence = sequence,
      .schedule = run.chunks > 1 ? Pipeline::interleaved : Pipeline::one_f_one_b,
      .chunks = run.chunks};
  return plan_step(spec, {.positions = kSequence, .recompute_blocks = recompute},
                   make_plan(spec, request, ranks, kSequence), run.tp * run.dp, run.batch);
}

CommCounts::Entry entry(const StepPlan& plan, Axis axis, CommOp op) {
  return plan.traffic.on(axis).by_op[static_cast<std::size_t>(op)];
}

TEST(PublishedRuns, AreGivenTheVolumesThatAreKnownOfThem) {
  for (const PublishedRun& run : kRuns) {
    SCOPED_TRACE(run.name);
    const StepPlan plain = plan(run, false, false), recomputing = plan(run, true, false);
    // And one small sum per step, of loss, norm, whether a rank asks for something, and what a
    // block takes each rank.
    const std::int64_t ranks = std::int64_t{run.tp} * run.pp * run.dp;
    const auto on_tp = entry(plain, Axis::tp, CommOp::all_reduce);
    EXPECT_EQ(on_tp.calls, run.tp_calls + 1);
    EXPECT_EQ(on_tp.payload_bytes, run.tp_calls * run.message_bytes * kWider + 24 + 8 * ranks);
    EXPECT_EQ(entry(recomputing, Axis::tp, CommOp::all_reduce).calls, run.tp_calls_recomputing + 1);

    const auto sends = entry(plain, Axis::pp, CommOp::send);
    EXPECT_EQ(sends.calls, run.sends);
    EXPECT_EQ(sends.payload_bytes, run.sends * run.message_bytes * kWider);
    const auto split_sends = entry(plan(run, false, true), Axis::pp, CommOp::send);
    EXPECT_EQ(split_sends.payload_bytes, run.sends * run.message_bytes * kWider / run.tp);

    const auto gradients = static_cast<std::size_t>(MemoryTag::gradients);
    EXPECT_NEAR(static_cast<double>(plain.before_step[gradients]) / kWider / 1e9,
                run.gradient_gigabytes, 0.002 * run.gradient_gigabytes);
    if (run.dp > 1) {
      EXPECT_EQ(entry(plain, Axis::dp, CommOp::all_reduce).payload_bytes,
                static_cast<std::int64_t>(plain.before_step[gradients]) + 8 + 24 + 8 * ranks);
    }
  }
}

}  // namespace
}  // namespace heddle
