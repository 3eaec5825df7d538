#include "engine/executor.h"

#include <gtest/gtest.h>

#include <string>

#include "parallel/schedule/make_schedule.h"

namespace heddle {
namespace {

/// Writes down what it is told to do.
class Recorder : public Stage {
 public:
  void forward(int microbatch) override { note("F", microbatch); }
  void backward_input(int microbatch) override { note("B", microbatch); }
  void backward_weight(int microbatch) override { note("W", microbatch); }
  void backward(int microbatch) override { note("BW", microbatch); }
  void reduce_grads() override { text += "reduce "; }
  void step() override { text += "step "; }

  std::string text;

 private:
  void note(const char* what, int microbatch) { text += what + std::to_string(microbatch) + " "; }
};

TEST(Executor, DoesWhatTheScheduleSaysInOrder) {
  Recorder stage;
  execute(lower(make_schedule("1f1b", {1, 3})), 0, stage);
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
  execute(schedule, 0, stage);
  EXPECT_EQ(stage.text, "F0 B0 F1 BW1 W0 reduce step ");
}

TEST(Executor, TellsWhenEachActionBeganAndEnded) {
  Recorder stage;
  std::string seen;
  double now = 0.0;
  execute(lower(make_schedule("1f1b", {1, 1})), 0, stage,
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
  execute(schedule, 0, first);
  execute(schedule, 1, second);
  EXPECT_EQ(first.text, "F0 ");
  EXPECT_EQ(second.text, "F0 BW0 ");
}

}  // namespace
}  // namespace heddle
