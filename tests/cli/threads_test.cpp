#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "cli/run_program.h"

namespace heddle::cli {
namespace {

/// What OpenMP says of itself when a program that computes has opened it: the value of `name`.
std::string openmp_setting(const std::string& name, RunOptions options) {
  options.environment["OMP_DISPLAY_ENV"] = "verbose";
  const Outcome outcome = run_heddle({"doctor", "--json"}, options);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const std::string before = name + " = '";
  const auto begin = outcome.err.find(before);
  if (begin == std::string::npos) return "not shown";
  const auto from = begin + before.size();
  return outcome.err.substr(from, outcome.err.find('\'', from) - from);
}

TEST(WaitingThreads, LookForMicrosecondsBeforeTheySleep) {
  if (std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) {
    GTEST_SKIP() << "the environment of this test says how threads wait";
  }
  // OpenMP's own 300,000 looks take milliseconds, which is what the others' time slices take.
  const int looks = std::stoi(openmp_setting("GOMP_SPINCOUNT", {}));
  EXPECT_GT(looks, 0);
  EXPECT_LE(looks, 10000);
}

TEST(WaitingThreads, WaitAsTheUserSays) {
  EXPECT_EQ(openmp_setting("GOMP_SPINCOUNT", {.environment = {{"GOMP_SPINCOUNT", "77"}}}), "77");
  const RunOptions active{.environment = {{"OMP_WAIT_POLICY", "active"}}};
  EXPECT_EQ(openmp_setting("OMP_WAIT_POLICY", active), "ACTIVE");
  EXPECT_EQ(openmp_setting("GOMP_SPINCOUNT", active), "30000000000");
}

}  // namespace
}  // namespace heddle::cli
