#include <gtest/gtest.h>

#include <csignal>

#include "base/file_system.h"
#include "train/tiny_run.h"

namespace heddle {
namespace {

Json report_of(const TinyRun& run) { return read_json_file(run.run_folder() / "report.json"); }

TEST(StartsOfARun, AreInItsReportWithDateHostVersionAndCommand) {
  const TinyRun run;
  const Outcome outcome = run_heddle(
      {"train", (run.path() / "run.toml").string(), "--set", "run.name=two words", "--ranks", "2"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json report = report_of(run);
  ASSERT_EQ(report["starts"].size(), 1U);
  const Json& start = report["starts"][0];
  EXPECT_EQ(start["step"], 0);
  EXPECT_EQ(start["ranks"], 2);
  EXPECT_EQ(start["threads"], 1);
  EXPECT_NE(start["host"], "");
  EXPECT_NE(start["device"], "");
  EXPECT_NE(start["version"], "");
  const std::string command = start["command"];
  EXPECT_NE(command.find("run.toml --set 'run.name=two words' --ranks 2"), std::string::npos)
      << command;
  EXPECT_LE(start["time"].get<std::string>(), report["ended"].get<std::string>());
  EXPECT_EQ(report["ended"].get<std::string>().size(), std::string("2026-11-15T09:30:00Z").size());
}

TEST(StartsOfARun, ShowAResumeAfterAKillAndForgetAllAfterFresh) {
  const TinyRun run;
  const std::string file = (run.path() / "run.toml").string();
  const std::vector<std::string> command = {"train", file, "--set", "train.steps=4000"};
  const Outcome killed =
      run_heddle(command, {.signal = SIGKILL, .signal_at = "step 8: checkpoint durable"});
  ASSERT_EQ(killed.signal, SIGKILL) << killed.err;
  const Outcome stopped =
      run_heddle(command, {.signal = SIGTERM, .signal_at = "checkpoint durable"});
  ASSERT_EQ(stopped.status, 6) << stopped.err;
  const Json report = report_of(run);
  ASSERT_EQ(report["starts"].size(), 2U);
  EXPECT_EQ(report["starts"][0]["step"], 0);
  const std::int64_t resumed_at = report["starts"][1]["step"];
  EXPECT_GE(resumed_at, 8);
  const std::string page = read_text_file(run.run_folder() / "report.html");
  EXPECT_NE(page.find(fmt::format("resumed at step {}, 20", resumed_at)), std::string::npos);
  const std::string metrics = read_text_file(run.run_folder() / "metrics.jsonl");
  EXPECT_EQ(metrics.find("command"), std::string::npos) << "its lines are steps and evaluations";

  const Outcome fresh = run_heddle({"train", file, "--fresh"});
  ASSERT_EQ(fresh.status, 0) << fresh.err;
  EXPECT_EQ(report_of(run)["starts"].size(), 1U);
}

}  // namespace
}  // namespace heddle
