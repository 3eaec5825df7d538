#include "observe/starts.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file_system.h"
#include "support/temporary_folder.h"

namespace heddle::observe {
namespace {

RunStart start_after(std::int64_t step, const std::string& time) {
  return {.step = step,
          .time = time,
          .host = "loom",
          .device = "a processor",
          .version = "0.3.0",
          .command = "heddle train 'my run.toml'",
          .ranks = 2,
          .threads = 3};
}

std::vector<std::int64_t> steps_of(const std::vector<RunStart>& starts) {
  std::vector<std::int64_t> steps;
  for (const auto& start : starts) steps.push_back(start.step);
  return steps;
}

class Starts : public testing::Test {
 protected:
  std::filesystem::path file() const { return folder_.path() / "starts.jsonl"; }
  const TemporaryFolder folder_;
};

TEST_F(Starts, AreReadBackAsTheyWereRecorded) {
  record_start(file(), start_after(0, "2026-11-15T09:30:00Z"));
  record_start(file(), start_after(240, "2026-11-15T10:00:00Z"));
  const auto starts = read_starts(file());
  ASSERT_EQ(steps_of(starts), (std::vector<std::int64_t>{0, 240}));
  EXPECT_EQ(starts[1].time, "2026-11-15T10:00:00Z");
  EXPECT_EQ(starts[1].host, "loom");
  EXPECT_EQ(starts[1].device, "a processor");
  EXPECT_EQ(starts[1].version, "0.3.0");
  EXPECT_EQ(starts[1].command, "heddle train 'my run.toml'");
  EXPECT_EQ(starts[1].ranks, 2);
  EXPECT_EQ(starts[1].threads, 3);
}

TEST_F(Starts, FromTheBeginningForgetWhatWasBefore) {
  record_start(file(), start_after(0, "a"));
  record_start(file(), start_after(240, "b"));
  record_start(file(), start_after(0, "c"));
  const auto starts = read_starts(file());
  ASSERT_EQ(steps_of(starts), (std::vector<std::int64_t>{0}));
  EXPECT_EQ(starts[0].time, "c");
}

TEST_F(Starts, OfADamagedFileAreThoseThatCanBeRead) {
  write_file_atomically(real_file_system(), file(),
                        "{\"step\":0,\"time\":7}\nnot json\n[]\n{\"step\":-4}\n{\"step\":\"1\"}\n"
                        "{\"step\":10,\"time\":\"torn");
  record_start(file(), start_after(20, "b"));
  const auto starts = read_starts(file());
  ASSERT_EQ(steps_of(starts), (std::vector<std::int64_t>{0, 20}));
  EXPECT_EQ(starts[0].time, "");
}

TEST_F(Starts, OfNoFileAreNoneAndAFolderThatCannotBeWrittenIsNamed) {
  EXPECT_TRUE(read_starts(file()).empty());
  EXPECT_THROW(record_start("/dev/null/starts.jsonl", start_after(0, "a")), Error);
}

TEST_F(Starts, WithACommandThatIsNoTextAreStillRecorded) {
  RunStart start = start_after(0, "a");
  start.command = "heddle train \xFF\n\"x\"";
  record_start(file(), start);
  ASSERT_EQ(read_starts(file()).size(), 1U);
  EXPECT_EQ(read_starts(file())[0].command, "heddle train \xEF\xBF\xBD\n\"x\"");
}

TEST_F(Starts, AreOnTheCurvesUntilALaterOneTakesThemBack) {
  const auto on_curves = [](std::vector<std::int64_t> steps) {
    std::vector<RunStart> starts;
    for (const auto step : steps) starts.push_back(start_after(step, "t"));
    return steps_of(resumes_on_curves(starts));
  };
  using Steps = std::vector<std::int64_t>;
  EXPECT_EQ(on_curves({0}), Steps{});
  EXPECT_EQ(on_curves({0, 240, 400}), (Steps{240, 400}));
  EXPECT_EQ(on_curves({0, 240, 240}), (Steps{240, 240}));
  EXPECT_EQ(on_curves({0, 240, 400, 300}), (Steps{240, 300})) << "400 was made anew";
  EXPECT_EQ(on_curves({240}), Steps{240}) << "the beginning was not recorded";
}

}  // namespace
}  // namespace heddle::observe
