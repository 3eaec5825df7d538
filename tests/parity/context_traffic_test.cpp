#include <gtest/gtest.h>

#include <mutex>
#include <numeric>

#include "comm/threads/thread_world.h"
#include "parity/rank_training.h"
#include "parity/traffic_text.h"

namespace heddle {
namespace {

constexpr BatchShape kBatch{.sequences = 2, .seq_len = 13, .microbatches = 3};
constexpr ElementBytes kFloats{.value = 4, .partial = 4};

std::int64_t sent_on_cp(const MeshTraffic& traffic) {
  return traffic.on(Axis::cp).by_op[static_cast<std::size_t>(CommOp::send)].payload_bytes;
}

/// The windows of the blocks that a rank has: each attends to a micro-batch once in F and once in
/// B.
std::vector<std::optional<std::int64_t>> windows_on(const ModelSpec& spec, const ParallelPlan& plan,
                                                    int rank) {
  std::vector<std::optional<std::int64_t>> windows;
  for (const int stage : plan.stages_of(plan.mesh.coord(Axis::pp, rank))) {
    const auto& [begin, end] = plan.units_of_stage[static_cast<std::size_t>(stage)];
    for (int unit = begin; unit < end; ++unit) {
      if (unit > 0 && unit <= spec.layers) windows.push_back(spec.block(unit - 1).window);
    }
  }
  return windows;
}

/// What a rank sends for the attention of one block to one micro-batch, forward and backward. Where
/// the rest of the block is computed again, only heads are exchanged once more.
std::int64_t bytes_of_block(ContextShape shape, const std::vector<std::int64_t>& documents,
                            int cp_rank, bool recompute) {
  shape.documents = documents;
  shape.tokens = std::accumulate(documents.begin(), documents.end(), std::int64_t{0});
  const auto context = make_rank_context(shape, cp_rank);
  const ContextPlan& plan = context->plan;
  std::int64_t bytes = 0;
  for (const ContextPass* pass : {&plan.forward, &plan.backward}) {
    const auto counts = count_by_rank(*pass, plan.shape);
    bytes += bytes_of(counts[static_cast<std::size_t>(cp_rank)].sent, kFloats);
  }
  if (!recompute || !context->forward.exchanges_heads) return bytes;
  for (const ProgramRound& round : context->forward.rounds) {
    for (const Transfer& transfer : round.sends) {
      if (!transfer.fills_share) continue;
      bytes += bytes_of(traffic_of(transfer.message, plan.shape), kFloats);
    }
  }
  return bytes;
}

class ContextGrid : public testing::TestWithParam<std::size_t> {
 protected:
  const MeshCase& mesh() const { return context_cases()[GetParam()]; }

  /// One of the models that fit, in turn; some have layers with and without windows and caps.
  ModelSpec model() const {
    std::vector<ModelSpec> all = grid_specs(), fitting;
    all.push_back(deep_spec("gemma2", 4));
    all.push_back(deep_spec("gemma3", 5));
    for (const ModelSpec& spec : all) {
      if (fits(spec, mesh().request)) fitting.push_back(spec);
    }
    EXPECT_FALSE(fitting.empty());
    return fitting[GetParam() % fitting.size()];
  }
};

TEST_P(ContextGrid, SendsAndHoldsWhatIsPredicted) {
  const ModelSpec spec = model();
  SCOPED_TRACE(spec.family);
  std::mutex one_at_a_time;
  run_ranks(mesh().ranks(), [&](World& world) {
    RankTraining training(spec, mesh(), kBatch, world);
    training.run(1);
    const MeshTraffic traffic = training.mesh().traffic();
    const MemoryStats stats = training.memory().stats();
    const ParallelPlan plan = training.plan();
    const StepPlan predicted =
        plan_step(spec, RankTraining::build_options(mesh(), kBatch), plan, world.rank(), kBatch);
    const std::lock_guard lock(one_at_a_time);
    EXPECT_EQ(text(traffic), text(predicted.traffic)) << "rank " << world.rank();
    EXPECT_EQ(stats.peak, predicted.memory.peak) << "rank " << world.rank();
    EXPECT_EQ(stats.at_peak, predicted.memory.at_peak) << "rank " << world.rank();
  });
}

TEST_P(ContextGrid, SendsTheBytesOfThePlanWithAndWithoutDocuments) {
  const ModelSpec spec = model();
  SCOPED_TRACE(spec.family);
  std::mutex one_at_a_time;
  run_ranks(mesh().ranks(), [&](World& world) {
    RankTraining training(spec, mesh(), kBatch, world);
    const ParallelPlan plan = training.plan();
    const int cp_rank = training.mesh().coord(Axis::cp);
    const auto expected = [&](const std::vector<std::int64_t>& documents) {
      std::int64_t bytes = 0;
      for (const auto& window : windows_on(spec, plan, world.rank())) {
        ContextShape shape = plan.context_shape(spec);
        shape.window = window;
        bytes += bytes_of_block(shape, documents, cp_rank, mesh().recompute);
      }
      return bytes;
    };
    training.run(1);
    const std::int64_t whole = sent_on_cp(training.mesh().traffic());
    std::int64_t of_packed = 0;
    for (int i = 0; i < kBatch.microbatches; ++i) {
      training.pack(i, kPackedDocuments[i]);
      of_packed += expected(kPackedDocuments[i]);
    }
    training.run(2);
    const std::int64_t packed = sent_on_cp(training.mesh().traffic()) - whole;
    const std::lock_guard lock(one_at_a_time);
    EXPECT_EQ(whole, kBatch.microbatches * expected({13, 13})) << "rank " << world.rank();
    EXPECT_EQ(packed, of_packed) << "rank " << world.rank();
  });
}

INSTANTIATE_TEST_SUITE_P(Parity, ContextGrid,
                         testing::Range(std::size_t{0}, context_cases().size()),
                         [](const auto& info) { return name_of(context_cases()[info.param]); });

}  // namespace
}  // namespace heddle
