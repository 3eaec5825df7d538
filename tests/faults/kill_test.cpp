#include <gtest/gtest.h>

#include <csignal>
#include <random>

#include "checkpoint/reader.h"
#include "train/tiny_run.h"

namespace heddle {
namespace {

using std::chrono::microseconds;

/// A checkpoint after every step, so that most of the time goes into saving; a rate that does not
/// depend on the number of steps, so that the run can be ended wherever the kills have left it.
std::vector<std::string> saving_all_the_time(std::int64_t steps) {
  return {"checkpoint.every=1",
          "checkpoint.keep=2",
          "data.seq_len=8",
          "train.microbatch=1",
          "train.tokens_per_step=8",
          "optim.schedule=constant",
          "observe.tensorboard=false",
          "observe.report=false",
          "data.holdout=0",
          "train.steps=" + std::to_string(steps)};
}

/// The last step that the program said was safe; 0 when none.
std::int64_t last_durable(const std::string& said) {
  const auto end = said.rfind(": checkpoint durable");
  if (end == std::string::npos) return 0;
  return std::stoll(said.substr(said.rfind("step ", end) + 5));
}

TEST(Kill, AtTwoHundredRandomMomentsNeverLeavesHalfACheckpoint) {
  const TinyRun run;
  std::mt19937_64 random(20240229);
  std::uniform_int_distribution<int> delay(0, 150'000);
  std::int64_t promised = 0;
  int inside_saves = 0;
  for (int attempt = 0; attempt < 200; ++attempt) {
    const Outcome outcome = run.train(saving_all_the_time(1'000'000), {},
                                      {.signal = SIGKILL,
                                       .signal_at = ": checkpoint durable",
                                       .signal_delay = microseconds(delay(random))});
    ASSERT_EQ(outcome.signal, SIGKILL) << outcome.err;
    if (!list_leftovers(run.checkpoints()).empty()) ++inside_saves;
    for (const auto& folder : list_checkpoints(run.checkpoints())) {
      const auto checked = check_checkpoint(folder.path, Verify::checksums);
      ASSERT_TRUE(checked) << folder.path << " at attempt " << attempt;
    }
    const auto latest = open_latest(run.checkpoints());
    ASSERT_TRUE(latest.has_value());
    promised = std::max(promised, last_durable(outcome.err));
    ASSERT_GE(latest->manifest().step, promised) << "what was durable is gone";
  }
  EXPECT_GE(inside_saves, 50) << "too few kills landed where this test looks";

  const std::int64_t end = open_latest(run.checkpoints())->manifest().step + 3;
  const Outcome finished = run.train(saving_all_the_time(end));
  ASSERT_EQ(finished.status, 0) << finished.err;
  EXPECT_TRUE(list_leftovers(run.checkpoints()).empty()) << "remains of the kills";

  const TinyRun whole;
  auto settings = saving_all_the_time(end);
  settings[0] = "checkpoint.every=0";
  const Outcome uninterrupted = whole.train(settings);
  ASSERT_EQ(uninterrupted.status, 0) << uninterrupted.err;
  EXPECT_EQ(run.numbers(), whole.numbers());
  expect_same_state(run.checkpoint(end), whole.checkpoint(end));
}

}  // namespace
}  // namespace heddle
