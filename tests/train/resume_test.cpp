#include <gtest/gtest.h>

#include <csignal>
#include <map>

#include "checkpoint/reader.h"
#include "observe/trace_parts.h"
#include "train/tiny_run.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

/// Steps of this size take long enough for a signal to arrive before the last one.
const std::vector<std::string> kSlow = {"train.tokens_per_step=4096", "train.eval_every=3"};

std::vector<std::string> with(std::vector<std::string> settings, const std::string& one) {
  settings.push_back(one);
  return settings;
}

/// Trains until `signal`, sent when `line` appears. On a loaded machine the run may end before the
/// signal comes; then once more from the start.
Outcome interrupt(const TinyRun& run, const std::vector<std::string>& settings, int signal,
                  const std::string& line) {
  Outcome outcome;
  for (int attempt = 0; attempt < 5; ++attempt) {
    fs::remove_all(run.run_folder());
    outcome = run.train(settings, {}, {.signal = signal, .signal_at = line});
    if (outcome.status != 0) break;
  }
  return outcome;
}

void expect_same_after_kill(const TinyRun& whole, const TinyRun& broken,
                            const std::vector<std::string>& settings) {
  ASSERT_EQ(whole.train(settings).status, 0);
  const Outcome killed = interrupt(broken, settings, SIGKILL, "step 4: checkpoint durable");
  ASSERT_EQ(killed.signal, SIGKILL) << killed.err;
  const Outcome resumed = broken.train(settings);
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_NE(resumed.err.find("resuming from"), std::string::npos) << resumed.err;
  EXPECT_EQ(broken.numbers(), whole.numbers());
  expect_same_state(broken.checkpoint(10), whole.checkpoint(10));
}

TEST(Resume, AfterAKillGivesTheSameRunBitForBit) {
  const TinyRun whole, broken;
  expect_same_after_kill(whole, broken, kSlow);
}

TEST(Resume, KeepsExactWeightsBesideRoundedOnes) {
  const TinyRun whole, broken;
  expect_same_after_kill(whole, broken, with(kSlow, "checkpoint.dtype=bf16"));
}

TEST(Resume, ContinuesAMixtureWhereItStood) {
  const TinyRun whole, broken;
  whole.use_two_sources();
  broken.use_two_sources();
  expect_same_after_kill(whole, broken, kSlow);
}

TEST(Resume, AfterASignalContinuesToTheSameEnd) {
  const TinyRun whole;
  ASSERT_EQ(whole.train(kSlow).status, 0);
  for (const auto& [signal, name] : {std::pair(SIGINT, "SIGINT"), std::pair(SIGTERM, "SIGTERM"),
                                     std::pair(SIGHUP, "SIGHUP"), std::pair(SIGUSR2, "SIGUSR2")}) {
    const TinyRun run;
    const Outcome stopped = interrupt(run, kSlow, signal, "step 2/10");
    ASSERT_EQ(stopped.status, 6) << stopped.err;
    EXPECT_NE(stopped.err.find(std::string("stopped by ") + name), std::string::npos)
        << stopped.err;
    const auto saved = open_latest(run.checkpoints());
    ASSERT_TRUE(saved.has_value());
    EXPECT_GE(saved->manifest().step, 2);
    const Outcome resumed = run.train(kSlow);
    ASSERT_EQ(resumed.status, 0) << resumed.err;
    EXPECT_EQ(run.numbers(), whole.numbers());
    expect_same_state(run.checkpoint(10), whole.checkpoint(10));
  }
}

TEST(Resume, OfAFinishedRunChangesNothing) {
  const TinyRun run;
  ASSERT_EQ(run.train().status, 0);
  const std::string numbers = run.numbers();
  const auto state = tensors_of(run.checkpoint(10));
  const Outcome again = run.train();
  EXPECT_EQ(again.status, 0) << again.err;
  EXPECT_EQ(run.numbers(), numbers);
  EXPECT_EQ(tensors_of(run.checkpoint(10)), state);
}

TEST(Resume, AppendsToTheTrace) {
  const TinyRun run;
  ASSERT_EQ(run.train({"train.steps=6", "observe.trace=true"}).status, 0);
  const Outcome resumed = run.train({"train.steps=10", "observe.trace=true"}, {"--accept-changes"});
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  std::map<std::int64_t, double> ends;  // of each step
  const observe::Trace trace = observe::read_trace_parts(run.run_folder() / "trace");
  for (const observe::Span& span : trace.spans()) {
    ends[span.step] = std::max(ends[span.step], span.begin_seconds + span.duration_seconds);
  }
  double before = 0.0;
  for (std::int64_t step = 1; step <= 10; ++step) {
    ASSERT_TRUE(ends.contains(step)) << step;
    EXPECT_GT(ends.at(step), before) << "one timeline, step " << step;
    before = ends.at(step);
  }
  EXPECT_EQ(ends.size(), 10u);
}

TEST(Resume, IsNotDoneWithFresh) {
  const TinyRun run;
  ASSERT_EQ(run.train().status, 0);
  const std::string numbers = run.numbers();
  const auto state = tensors_of(run.checkpoint(10));
  const Outcome again = run.train({}, {"--fresh"});
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_EQ(again.err.find("resuming"), std::string::npos) << again.err;
  EXPECT_NE(again.err.find("step 1/10"), std::string::npos) << again.err;
  EXPECT_EQ(run.numbers(), numbers) << "the same seed gives the same run";
  EXPECT_EQ(tensors_of(run.checkpoint(10)), state);
}

}  // namespace
}  // namespace heddle
