#include "observe/progress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

namespace heddle::observe {
namespace {

// Runs a job of `steps` steps of one second each, on a clock that only the job moves.
std::string output_of(ProgressOptions options, int steps, std::uint64_t amount) {
  double now = 100;
  options.clock = [&now] { return now; };
  testing::internal::CaptureStderr();
  {
    Progress progress(std::move(options));
    for (int i = 0; i < steps; ++i) {
      now += 1;
      progress.add(amount);
    }
    progress.finish();
  }
  return testing::internal::GetCapturedStderr();
}

TEST(Progress, IsSilentBelowTwoSeconds) {
  EXPECT_EQ(output_of({.label = "reading", .total = 1, .terminal = {.is_terminal = true}}, 1, 1),
            "");
}

TEST(Progress, WithoutATerminalPrintsAtMostEveryTenSeconds) {
  const std::string out =
      output_of({.label = "tokenizing", .total = 25600, .unit = "B", .terminal = {}}, 25, 1024);
  EXPECT_EQ(out,
            "tokenizing   8% | 2.0 KiB of 25.0 KiB | 1.0 KiB/s | ETA 23s\n"
            "tokenizing  48% | 12.0 KiB of 25.0 KiB | 1.0 KiB/s | ETA 13s\n"
            "tokenizing  88% | 22.0 KiB of 25.0 KiB | 1.0 KiB/s | ETA 3.0s\n"
            "tokenizing: 25.0 KiB in 25s (1.0 KiB/s)\n");
}

TEST(Progress, OnATerminalRewritesInPlaceAndLeavesOneLineBehind) {
  const std::string out = output_of({.label = "tests",
                                     .total = 10,
                                     .unit = "cases",
                                     .terminal = {.is_terminal = true, .columns = 30}},
                                    10, 1);
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 1);
  EXPECT_NE(out.find("\rtests  20% | 2 cases of 10 ca"), std::string::npos);
  EXPECT_EQ(out.substr(out.rfind('\r')), "\rtests: 10 cases in 10s (1 cases/s)\n");
  EXPECT_EQ(out.find('\x1b'), std::string::npos);
}

TEST(Progress, ShowsNeitherPercentageNorEtaForAnUnknownTotal) {
  const std::string out = output_of({.label = "reading", .unit = "lines"}, 2, 5);
  EXPECT_EQ(out.find('%'), std::string::npos);
  EXPECT_EQ(out.find("ETA"), std::string::npos);
  EXPECT_NE(out.find("reading | 10 lines | 5 lines/s"), std::string::npos);
}

TEST(Progress, CountsSkippedWorkForThePercentageButNotForTheRate) {
  double now = 0;
  testing::internal::CaptureStderr();
  Progress progress(
      {.label = "resuming", .total = 100, .unit = "files", .clock = [&] { return now; }});
  progress.skip(90);
  now = 5;
  progress.add(5);
  const std::string out = testing::internal::GetCapturedStderr();
  EXPECT_EQ(out, "resuming  95% | 95 files of 100 files | 1 files/s | ETA 5.0s\n");
}

TEST(Progress, CountsEverythingFromManyThreads) {
  std::atomic<double> now = 0;
  testing::internal::CaptureStderr();
  Progress progress({.label = "work", .unit = "items", .clock = [&] { return now.load(); }});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) progress.add(1);
    });
  }
  for (auto& thread : threads) thread.join();
  now = 4;
  progress.finish();
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "work: 4.0k items in 4.0s (1.0k items/s)\n");
}

}  // namespace
}  // namespace heddle::observe
