#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "comm/threads/thread_world.h"
#include "engine/executor.h"
#include "engine/memory_plan.h"
#include "parallel/schedule/make_schedule.h"
#include "parity/rank_training.h"

namespace heddle {
namespace {

std::string_view name_at(std::size_t index) { return schedule_names()[index]; }

int chunks_of(std::string_view schedule) { return schedule == "interleaved" ? 2 : 1; }

/// Keeps a known number of bytes between F and the end of W, as layers keep activations, and passes
/// on sums that tell which stages a micro-batch went through.
class KeepingStage : public Stage {
 public:
  KeepingStage(Memory& memory, std::size_t kept_bytes, int stages)
      : memory_(memory), kept_bytes_(static_cast<std::int64_t>(kept_bytes)), stages_(stages) {}

  Tensor compute(const StepOp& op, const Tensor& given) override {
    const auto& [act, stage, microbatch, peer, collective] = *op.action;
    if (act == Act::f) {
      kept_[{stage, microbatch}] = memory_.alloc({kept_bytes_}, DType::u8, MemoryTag::activations);
      return pass_on(given, stage, microbatch, stage + 1 < stages_);
    }
    Tensor dx;
    if (act != Act::w) dx = pass_on(given, stages_ - 1 - stage, microbatch, stage > 0);
    if (act != Act::b) kept_.erase({stage, microbatch});
    return dx;
  }
  Tensor boundary(int) override { return memory_.alloc({1}, DType::i32, MemoryTag::communication); }
  void perform(const StepOp& op) override {
    if (op.kind == StepOp::Kind::update) is_done_ = kept_.empty();
  }

  bool is_done() const { return is_done_; }

 private:
  /// 1000 for each micro-batch, and 1 for each stage before this one.
  Tensor pass_on(const Tensor& x, int before, int microbatch, bool goes_on) {
    const std::int32_t expected = 1000 * microbatch + before;
    const std::int32_t got = x.defined() ? x.host<std::int32_t>()[0] : 1000 * microbatch;
    EXPECT_EQ(got, expected);
    if (!goes_on) return {};
    const Tensor y = boundary(microbatch);
    y.host<std::int32_t>()[0] = expected + 1;
    return y;
  }

  Memory& memory_;
  const std::int64_t kept_bytes_;
  const int stages_;
  std::map<std::pair<int, int>, Tensor> kept_;
  bool is_done_ = false;
};

class Execution : public testing::TestWithParam<std::size_t> {};

/// Also: it ends. Sends wait for the one before the last, which a schedule does not know of.
TEST_P(Execution, HoldsAsManyMicroBatchesAsTheScheduleSays) {
  constexpr std::size_t kStageBytes = 4096;
  for (const int ranks : {2, 3, 4, 8}) {
    for (const int microbatches : {1, 2, 3, 5, 8, 16, 19}) {
      const PipeShape shape{ranks, microbatches, chunks_of(name_at(GetParam()))};
      const Schedule schedule = lower(make_schedule(pipeline_named(name_at(GetParam())), shape));
      const auto in_flight = peak_in_flight(schedule);
      run_ranks(ranks, [&](World& world) {
        Memory memory;
        Stream stream(1);
        KeepingStage stage(memory, kStageBytes, schedule.stages());
        execute(schedule, plain_units(schedule), {}, world.all(), stage, stream);
        EXPECT_TRUE(stage.is_done());
        const auto peak =
            memory.stats().peak_by_tag[static_cast<std::size_t>(MemoryTag::activations)];
        const auto stages = static_cast<double>(stages_of(schedule, world.rank()).size());
        EXPECT_EQ(peak / kStageBytes,
                  std::llround(in_flight[static_cast<std::size_t>(world.rank())] * stages))
            << ranks << " ranks, " << microbatches << " micro-batches, rank " << world.rank();
      });
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Parity, Execution, testing::Range(std::size_t{0}, schedule_names().size()),
                         [](const auto& info) {
                           std::string name(name_at(info.param));
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

/// A model whose saved bytes are known: what F keeps of a micro-batch until BW.
TEST(Activations, GrowByWhatAMicroBatchKeepsAndWithTheSchedule) {
  const ModelSpec spec = deep_spec("llama", 8);
  const BuildOptions options{.positions = 64};
  for (const char* name : {"gpipe", "1f1b"}) {
    const auto plan = make_plan(spec, {.dp = 1, .pp = 4, .schedule = pipeline_named(name)}, 4, 64);
    for (int rank = 0; rank < 4; ++rank) {
      Memory nothing(Memory::Mode::dry);
      const Mesh mesh = Mesh::recorded(plan.mesh, rank);
      const Model model(spec, options, plan, mesh, ParamStore::Purpose::training, nothing);
      const auto kept =
          static_cast<double>(model.cost({.sequences = 2, .seq_len = 64}).saved_bytes);
      // What is there only for a moment, and messages: no matter how many micro-batches there are.
      const auto beside_kept = [&](int microbatches) {
        const auto planned = plan_step(spec, options, plan, rank, {2, 64, microbatches});
        const auto in_flight = peak_in_flight(step_schedule(plan, microbatches));
        const auto tag = static_cast<std::size_t>(MemoryTag::activations);
        return static_cast<double>(planned.memory.at_peak[tag]) -
               in_flight[static_cast<std::size_t>(rank)] * kept;
      };
      const double expected = beside_kept(5);
      EXPECT_GT(expected, 0.0);
      EXPECT_LT(expected, kept);
      for (const int microbatches : {6, 8, 13}) {
        EXPECT_EQ(beside_kept(microbatches), expected) << name << " rank " << rank;
      }
    }
  }
}

}  // namespace
}  // namespace heddle
