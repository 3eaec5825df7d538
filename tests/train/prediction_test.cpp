#include <gtest/gtest.h>

#include <csignal>
#include <set>

#include "observe/trace_parts.h"
#include "support/source_dir.h"
#include "train/tiny_run.h"

namespace heddle {
namespace {

std::string machine_file() { return source_dir() + "/configs/systems/h200-hgx-ndr.toml"; }

TEST(TrainPrediction, StandsBesideWhatWasMeasured) {
  const TinyRun run;
  const Outcome outcome = run.train({"train.steps=4", "observe.system=\"" + machine_file() + "\""});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("s predicted from"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("in the median"), std::string::npos) << outcome.err;
  const Json report = read_json_file(run.run_folder() / "report.json");
  EXPECT_GT(report["step_seconds"]["predicted"].get<double>(), 0.0);
  EXPECT_GT(report["step_seconds"]["measured_median"].get<double>(), 0.0);
}

TEST(TrainPrediction, WithoutAMachineFileIsOfMemoryAndBytesOnly) {
  const TinyRun run;
  const Outcome outcome = run.train({"train.steps=2"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json report = read_json_file(run.run_folder() / "report.json");
  EXPECT_TRUE(report["step_seconds"]["predicted"].is_null());
  EXPECT_GT(report["step_seconds"]["measured_median"].get<double>(), 0.0);
  EXPECT_NE(outcome.err.find("a step held"), std::string::npos) << outcome.err;
}

TEST(TrainPrediction, RefusesAMachineFileThatIsNone) {
  const TinyRun run;
  const Outcome absent = run.train({"observe.system=\"/nonexistent.toml\""});
  EXPECT_EQ(absent.status, 5) << absent.err;
  EXPECT_NE(absent.err.find("/nonexistent.toml"), std::string::npos) << absent.err;
  // Of another dtype: this one only knows rates in 16 bits.
  std::string text = read_text_file(machine_file());
  const auto at = text.find("\nf32 = ", text.find("[device.matrix_tflops]"));
  ASSERT_NE(at, std::string::npos);
  text.erase(at, text.find('\n', at + 1) - at);
  run.write("machine.toml", text);
  const Outcome other =
      run.train({"observe.system=\"" + (run.path() / "machine.toml").string() + "\""});
  EXPECT_EQ(other.status, 2) << other.err;
  EXPECT_NE(other.err.find("matrix_tflops for f32"), std::string::npos) << other.err;
}

TEST(TrainTrace, HasTheActionsAndTheTrafficOfAllRanks) {
  const TinyRun run;
  const Outcome outcome = run.train(
      {"train.steps=3", "observe.trace=true", "parallel.dp=2", "parallel.pp=2"}, {"--ranks", "4"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const observe::Trace trace = observe::read_trace_parts(run.run_folder() / "trace");
  std::set<int> ranks;
  std::map<std::string, int> count;
  for (const observe::Span& span : trace.spans()) {
    ranks.insert(span.rank);
    ++count[span.name];
    if (span.category == "action") {
      EXPECT_EQ(span.stream, 0);
    } else {
      EXPECT_GT(span.stream, 0) << span.name;
      EXPECT_GT(span.bytes, 0u) << span.name;
    }
  }
  EXPECT_EQ(ranks, (std::set<int>{0, 1, 2, 3}));
  EXPECT_EQ(count["step"], 3 * 4);
  EXPECT_EQ(count["sa"], 3 * 2 * 1);  // messages: steps, replicas, micro-batches
  EXPECT_EQ(count["sg"], count["sa"]);
  EXPECT_GT(count["all_reduce"], 0);
  EXPECT_EQ(trace.stream_names().at({0, 0}), "actions");
  EXPECT_EQ(run_heddle({"trace", run.run_folder().string()}).status, 0);
}

TEST(TrainTrace, HasTheMessagesOfSharedAttention) {
  const TinyRun run;
  const Outcome outcome =
      run.train({"train.steps=3", "observe.trace=true", "parallel.cp=2", "parallel.context=ring"},
                {"--ranks", "2"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  std::int64_t messages = 0;
  const observe::Trace trace = observe::read_trace_parts(run.run_folder() / "trace");
  for (const observe::Span& span : trace.spans()) {
    if (span.name != "attention" || span.rank != 0) continue;
    EXPECT_EQ(span.category, "message");
    EXPECT_GT(span.bytes, 0u);
    ++messages;
  }
  const Json report = read_json_file(run.run_folder() / "report.json");
  EXPECT_GT(messages, 0);
  EXPECT_EQ(messages, report["communication"]["cp"]["send"]["counted"]["calls"]);
}

TEST(TrainTrace, GoesOnOverASignalAndHasEveryStepOnce) {
  const TinyRun run;
  const std::vector<std::string> settings = {"observe.trace=true", "train.tokens_per_step=4096"};
  const Outcome stopped = run.train(settings, {}, {.signal = SIGTERM, .signal_at = "step 2/10"});
  ASSERT_TRUE(stopped.status == 6 || stopped.status == 0) << stopped.err;
  ASSERT_EQ(run.train(settings).status, 0);
  double end = 0;
  std::vector<std::int64_t> steps;
  const observe::Trace trace = observe::read_trace_parts(run.run_folder() / "trace");
  for (const observe::Span& span : trace.spans()) {
    EXPECT_GE(span.begin_seconds, end - 1e-3) << span.name << " of step " << span.step;
    end = span.begin_seconds + span.duration_seconds;
    if (span.name == "step") steps.push_back(span.step);
  }
  EXPECT_EQ(steps, (std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
}

}  // namespace
}  // namespace heddle
