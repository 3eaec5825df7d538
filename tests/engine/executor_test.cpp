#include "engine/executor.h"

#include <gtest/gtest.h>

#include <string>

#include "comm/record/record_communicator.h"
#include "comm/threads/thread_world.h"
#include "parallel/schedule/make_schedule.h"

namespace heddle {
namespace {

/// Writes down what it is told to do.
class Recorder : public Stage {
 public:
  Tensor compute(const StepOp& op, const Tensor&) override {
    text += to_text(*op.action) + " ";
    return {};
  }
  Tensor boundary(int) override { return {}; }
  void perform(const StepOp& op) override {
    if (op.kind == StepOp::Kind::norm) text += "reduce ";
    if (op.kind == StepOp::Kind::update) text += "step ";
  }

  std::string text;
};

/// What one rank of `ranks` does, with nobody at the other ends.
void execute_alone(const Schedule& schedule, int rank, int ranks, Stage& stage,
                   const OnAction& on_action = {}) {
  RecordCommunicator pipeline(rank, ranks);
  Stream stream(1);
  execute(schedule, plain_units(schedule), {}, pipeline, stage, stream, on_action);
}

TEST(Executor, DoesWhatTheScheduleSaysInOrder) {
  Recorder stage;
  execute_alone(lower(make_schedule(Pipeline::one_f_one_b, {1, 3})), 0, 1, stage);
  EXPECT_EQ(stage.text, "F0 BW0 F1 BW1 F2 BW2 reduce step ");
}

TEST(Executor, KnowsTheHalvesOfBackward) {
  const Schedule schedule{.microbatches = 2,
                          .rank_of_stage = {0},
                          .by_rank = {{{Act::f, 0, 0},
                                       {Act::b, 0, 0},
                                       {Act::f, 0, 1},
                                       {Act::bw, 0, 1},
                                       {Act::w, 0, 0},
                                       {Act::reduce_grads},
                                       {Act::step}}}};
  ASSERT_TRUE(validate(schedule).empty());
  Recorder stage;
  execute_alone(schedule, 0, 1, stage);
  EXPECT_EQ(stage.text, "F0 B0 F1 BW1 W0 reduce step ");
}

TEST(Executor, TellsWhenEachActionBeganAndEnded) {
  Recorder stage;
  std::string seen;
  double now = 0.0;
  execute_alone(lower(make_schedule(Pipeline::one_f_one_b, {1, 1})), 0, 1, stage,
                [&](const Action& action, double begin, double end) {
                  seen += to_text(action) + " ";
                  EXPECT_LE(now, begin);
                  EXPECT_LE(begin, end);
                  now = end;
                });
  EXPECT_EQ(seen, "F0 BW0 reduce step ");
}

TEST(Executor, DoesOneRanksPart) {
  const Schedule schedule{.microbatches = 1,
                          .rank_of_stage = {0, 1},
                          .by_rank = {{{Act::f, 0, 0}}, {{Act::f, 1, 0}, {Act::bw, 1, 0}}}};
  Recorder first, second;
  execute_alone(schedule, 0, 2, first);
  execute_alone(schedule, 1, 2, second);
  EXPECT_EQ(first.text, "F0 ");
  EXPECT_EQ(second.text, "F0 BW0 ");
}

/// A stage adds one to what it gets, and checks that it got what the stage before (or behind) made
/// of this micro-batch.
class Relay : public Stage {
 public:
  explicit Relay(int stages) : stages_(stages) {}

  Tensor compute(const StepOp& op, const Tensor& given) override {
    const auto& [act, stage, microbatch, peer, collective] = *op.action;
    if (act == Act::w || act == Act::bw) ++weights;
    if (act == Act::w) return {};
    return act == Act::f ? forward(stage, microbatch, given) : backward(stage, microbatch, given);
  }
  Tensor boundary(int) override { return holding(0.0F); }
  void perform(const StepOp& op) override {
    if (op.kind == StepOp::Kind::update) ++steps;
  }

  int forwards = 0, backwards = 0, weights = 0, steps = 0;

 private:
  Tensor forward(int stage, int microbatch, const Tensor& x) {
    EXPECT_EQ(x.defined(), stage > 0);
    if (x.defined()) {
      EXPECT_EQ(number_in(x), activation(stage, microbatch));
    }
    ++forwards;
    return stage + 1 < stages_ ? holding(activation(stage + 1, microbatch)) : Tensor();
  }
  Tensor backward(int stage, int microbatch, const Tensor& dy) {
    EXPECT_EQ(dy.defined(), stage + 1 < stages_);
    if (dy.defined()) {
      EXPECT_EQ(number_in(dy), -activation(stage, microbatch));
    }
    ++backwards;
    return stage > 0 ? holding(-activation(stage - 1, microbatch)) : Tensor();
  }
  static float activation(int stage, int microbatch) {
    return static_cast<float>(1000 * microbatch + stage);
  }
  Tensor holding(float number) {
    const Tensor tensor = memory_.alloc({1}, DType::f32, MemoryTag::activations);
    tensor.host<float>()[0] = number;
    return tensor;
  }
  static float number_in(const Tensor& tensor) { return tensor.host<float>()[0]; }

  int stages_;
  Memory memory_;
};

TEST(Executor, BringsEveryStageWhatItsNeighboursMade) {
  constexpr int kMicrobatches = 7;
  for (const std::string_view name : schedule_names()) {
    for (const int ranks : {2, 3, 4}) {
      const int chunks = name == "interleaved" ? 2 : 1;
      const Schedule schedule = lower(make_schedule(
          pipeline_named(name), {.ranks = ranks, .microbatches = kMicrobatches, .chunks = chunks}));
      run_ranks(ranks, [&](World& world) {
        const int stages_of_a_rank = static_cast<int>(stages_of(schedule, world.rank()).size());
        Relay relay(schedule.stages());
        Stream stream(1);
        execute(schedule, plain_units(schedule), {}, world.all(), relay, stream);
        EXPECT_EQ(relay.forwards, kMicrobatches * stages_of_a_rank) << name;
        EXPECT_EQ(relay.backwards, kMicrobatches * stages_of_a_rank) << name;
        EXPECT_EQ(relay.weights, kMicrobatches * stages_of_a_rank) << name;
        EXPECT_EQ(relay.steps, 1) << name;
      });
    }
  }
}

}  // namespace
}  // namespace heddle
