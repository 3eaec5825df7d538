#include <gtest/gtest.h>

#include <csignal>

#include "train/tiny_run.h"

namespace heddle {
namespace {

const std::vector<StreamTo> kUseless = {StreamTo::full_disk, StreamTo::nowhere,
                                        StreamTo::reader_that_has_gone};

TEST(StandardError, ThatTakesNothingLeavesTrainingAndTheLogFileAsTheyAre) {
  const TinyRun quiet;
  ASSERT_EQ(quiet.train().status, 0);
  const auto lines_of = [](const TinyRun& run) {
    const std::string log = read_text_file(run.run_folder() / "log.txt");
    return std::count(log.begin(), log.end(), '\n');
  };
  for (const StreamTo err : kUseless) {
    const TinyRun run;
    const Outcome outcome = run.train({}, {}, {.err = err});
    EXPECT_EQ(outcome.status, 0) << static_cast<int>(err);
    EXPECT_EQ(outcome.signal, 0) << static_cast<int>(err);
    EXPECT_EQ(lines_of(run), lines_of(quiet));
    EXPECT_EQ(run.numbers(), quiet.numbers());
    expect_same_state(run.checkpoint(10), quiet.checkpoint(10));
  }
}

TEST(StandardError, ThatTakesNothingLeavesTheExitStatusOfAnError) {
  for (const StreamTo err : kUseless) {
    EXPECT_EQ(run_heddle({"trace", "/nonexistent"}, {.err = err}).status, 5);
    EXPECT_EQ(run_heddle({}, {.err = err}).status, 2) << "help on standard error";
  }
}

/// A result of every kind of printing: verbs by text and by JSON, help, version.
const std::vector<std::vector<std::string>> kResults = {
    {"--help"},
    {"--version"},
    {"plan", "--help"},
    {"config", "explain", "all", "--markdown"},
    {"simulate", "--schedule", "1f1b", "--stages", "4", "--microbatches", "4"},
    {"simulate", "--schedule", "1f1b", "--stages", "4", "--microbatches", "64", "--json"}};

TEST(StandardOutput, ThatDoesNotTakeTheResultIsStatus3) {
  for (const StreamTo out : {StreamTo::full_disk, StreamTo::nowhere}) {
    for (const auto& words : kResults) {
      const Outcome outcome = run_heddle(words, {.out = out});
      EXPECT_EQ(outcome.status, 3) << words[0] << ": " << outcome.err;
      EXPECT_NE(outcome.err.find("error: the result could not be written to standard output: "),
                std::string::npos)
          << words[0] << ": " << outcome.err;
    }
  }
}

TEST(StandardOutput, WhoseReaderHasEnoughEndsTheProgramSilently) {
  for (const auto& words : kResults) {
    const Outcome outcome = run_heddle(words, {.out = StreamTo::reader_that_has_gone});
    EXPECT_EQ(outcome.signal, SIGPIPE) << words[0];
    EXPECT_EQ(outcome.err, "") << words[0];
  }
}

TEST(StandardOutput, ThatDoesNotTakeTheResultOfARunDoesNotUndoTheRun) {
  const TinyRun run;
  const Outcome outcome = run.train({}, {"--json"}, {.out = StreamTo::full_disk});
  EXPECT_EQ(outcome.status, 3) << outcome.err;
  EXPECT_TRUE(std::filesystem::exists(run.checkpoint(10)));
  const auto model = run.run_folder().string();
  for (const StreamTo out : {StreamTo::full_disk, StreamTo::nowhere}) {
    EXPECT_EQ(run_heddle({"inspect", model}, {.out = out}).status, 3);
    EXPECT_EQ(run_heddle({"inspect", model, "--json"}, {.out = out}).status, 3);
  }
}

TEST(StandardOutput, ThatIsClosedDoesNotMatterWhereThereIsNoResult) {
  const TinyRun run;
  const Outcome outcome = run.train({}, {}, {.out = StreamTo::nowhere});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
}

}  // namespace
}  // namespace heddle
