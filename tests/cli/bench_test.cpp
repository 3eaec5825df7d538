#include <string>

#include "base/json.h"
#include "cli/refusals.h"

namespace heddle {
namespace {

using Words = std::vector<std::string>;

Json report_of(const Words& words) {
  const Outcome outcome = run_heddle(words);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  return parse_json(outcome.out, "stdout");
}

TEST(BenchLink, PrintsTheRateOfEveryLinkAndRefusesMessagesOfNothing) {
  const Json report = report_of({"bench", "link", "--ranks", "2", "--bytes", "4096", "--warm-up",
                                 "0", "--seconds", "0.05", "--json"});
  EXPECT_EQ(report.at("ranks"), 2);
  EXPECT_EQ(report.at("message_bytes"), 4096);
  ASSERT_EQ(report.at("links").size(), 2U);
  EXPECT_EQ(report.at("links").at(0).at("from"), 1);
  EXPECT_GT(report.at("links").at(0).at("bytes_per_second").get<double>(), 0.0);
  expect_refusal({"bench", "link", "--bytes", "0"}, 2, {"--bytes"});
}

Words bench_context(const Words& more) {
  Words words = {"bench",      "context", "--seq",      "96", "--heads",  "4",
                 "--kv-heads", "4",       "--head-dim", "16", "--rounds", "1"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(BenchContext, EmulatedBlocksTakeAsLongAsTheDeviceThatWasAskedFor) {
  const double flops = 1e7;
  const Json report =
      report_of(bench_context({"--ranks", "3", "--emulate-gflops", "0.01", "--json"}));
  EXPECT_EQ(report.at("ranks"), 3);
  EXPECT_EQ(report.at("is_emulated"), true);
  EXPECT_EQ(report.at("busy_seconds_per_byte"), 0.0);
  EXPECT_NEAR(report.at("pairs_per_second"), flops / (4 * 4 * 16), 1e-3);
  // All pairs, forward and backward, at best divided evenly. A wait is never too short.
  const double least = 3.5 * (96 * 97 / 2) * (4 * 4 * 16) / flops / 3;
  EXPECT_GE(report.at("methods").size(), 6U);
  for (const Json& method : report.at("methods")) {
    EXPECT_GE(method.at("seconds").get<double>(), 0.999 * least) << method;
    EXPECT_GE(method.at("predicted_seconds").get<double>(), 0.999 * least) << method;
  }
}

TEST(BenchContext, SaysThatBlocksAreEmulated) {
  const Outcome outcome = run_heddle(bench_context({"--emulate-gflops", "1"}));
  EXPECT_EQ(outcome.status, 0);
  EXPECT_NE(outcome.err.find("blocks are emulated"), std::string::npos) << outcome.err;
}

TEST(BenchContext, MeasuresWhatMovingBytesTakesOfARankThatComputes) {
  const Json report = report_of(bench_context({"--json"}));
  EXPECT_EQ(report.at("ranks"), 2);
  EXPECT_EQ(report.at("is_emulated"), false);
  EXPECT_GE(report.at("busy_seconds_per_byte").get<double>(), 0.0);
}

TEST(BenchContext, RefusesWhatCannotBe) {
  expect_refusal(bench_context({"--ranks", "1"}), 2, {"one rank", "--ranks 2"});
  expect_refusal(bench_context({"--emulate-gflops", "-1"}), 2, {"--emulate-gflops"});
  expect_refusal(bench_context({"--shares", "--emulate-gflops", "1"}), 2,
                 {"--shares", "--emulate-gflops", "leave out one"});
}

TEST(BenchDecode, TimesAllMethodsOnTheSameOutput) {
  const Json report = report_of({"bench", "decode", "--ranks", "3", "--context", "100", "--heads",
                                 "4", "--kv-heads", "2", "--rounds", "1", "--json"});
  EXPECT_EQ(report.at("ranks"), 3);
  ASSERT_EQ(report.at("methods").size(), 3U);
  for (const Json& method : report.at("methods")) {
    EXPECT_LT(method.at("difference").get<double>(), 1e-5) << method;
    EXPECT_GT(method.at("seconds").get<double>(), 0.0) << method;
  }
}

TEST(BenchDecode, RefusesWhatCannotBe) {
  expect_refusal({"bench", "decode", "--ranks", "4", "--context", "3", "--heads", "6"}, 2,
                 {"--context 3", "4 ranks", "6 query heads"});
  expect_refusal({"bench", "decode", "--ranks", "1"}, 2, {"one rank"});
}

}  // namespace
}  // namespace heddle
