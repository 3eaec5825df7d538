#include <string>

#include "base/json.h"
#include "cli/refusals.h"

namespace heddle {
namespace {

using Words = std::vector<std::string>;

Words simulate(const std::string& schedule, const std::string& stages,
               const std::string& microbatches, const Words& more = {}) {
  Words words = {"simulate", "--schedule",     schedule,    "--stages",
                 stages,     "--microbatches", microbatches};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(Simulate, PrintsTheMetricsAsJson) {
  const Outcome outcome =
      run_heddle(simulate("interleaved", "4", "8", {"--chunks", "2", "--json"}));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  const Json report = parse_json(outcome.out, "stdout");
  EXPECT_DOUBLE_EQ(report.at("makespan"), 28.5);
  EXPECT_DOUBLE_EQ(report.at("bubble_fraction"), 4.5 / 28.5);
  EXPECT_DOUBLE_EQ(report.at("bubble_over_ideal"), 0.1875);
  EXPECT_DOUBLE_EQ(report.at("bubble_cost_rate"), 4.5 / 28.5);
  EXPECT_EQ(report.at("peak_in_flight"), Json::parse("[5.5, 4.5, 3.5, 2.5]"));
}

TEST(Simulate, TimesAreOfARanksWholePart) {
  const Outcome outcome =
      run_heddle(simulate("zb-v", "2", "4", {"--times", "3,2.5,1e0,0.25", "--json"}));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json report = parse_json(outcome.out, "stdout");
  EXPECT_EQ(report.at("chunks"), 2);
  EXPECT_EQ(report.at("peak_in_flight"), Json::parse("[2.0, 2.0]"));
  EXPECT_GT(report.at("makespan"), 4 * 6.5);
}

TEST(Simulate, SplitsTheVocabularyOverTheRanks) {
  const Outcome outcome = run_heddle(simulate(
      "1f1b", "4", "8", {"--vocabulary", "1", "--vocabulary-times", "0.25,0.25", "--json"}));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json report = parse_json(outcome.out, "stdout");
  EXPECT_DOUBLE_EQ(report.at("makespan"), 8 * 3.5 + 9.0);
  EXPECT_EQ(report.at("peak_in_flight"), Json::parse("[6.0, 5.0, 4.0, 3.0]"));
}

TEST(Simulate, DrawsASmallTimelineAndWritesALargeOne) {
  const TestFiles files;
  const Outcome outcome = run_heddle(simulate("1f1b", "2", "2", {"--svg", files.at("a.svg")}));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("rank 0 |F0 F1 ......BW0-- ...BW1-- \n"
                             "rank 1 |...F0 BW0-- F1 BW1-- ......\n"),
            std::string::npos)
      << outcome.out;
  EXPECT_EQ(read_text_file(files.at("a.svg")).substr(0, 4), "<svg");
}

TEST(Simulate, RefusesWhatCannotBePlayed) {
  expect_refusal({"simulate"}, 2, {"--schedule"});
  expect_refusal(simulate("zigzag", "4", "8"), 2, {"zigzag", "1f1b", "v-half"});
  expect_refusal(simulate("1f1b", "0", "8"), 2, {"0 stages"});
  expect_refusal(simulate("1f1b", "4", "-3"), 2, {"-3 micro-batches"});
  expect_refusal(simulate("1f1b", "four", "8"), 2, {"--stages"});
  expect_refusal(simulate("1f1b", "4", "8", {"--chunks", "2"}), 2, {"chunk", "interleaved"});
  expect_refusal(simulate("interleaved", "4", "8", {"--chunks", "0"}), 2, {"chunks"});
  expect_refusal(simulate("1f1b", "2000000000", "2000000000"), 2, {"too many"});
  for (const std::string times : {"1,1,1", "1,1,1,0,0", ""}) {
    expect_refusal(simulate("1f1b", "4", "8", {"--times", times}), 2, {"--times", "F,B,W,C"});
  }
  for (const std::string times : {"1,1,x,0", "1,,1,0", "1,-1,1,0", "nan,1,1,1", "1,1,inf,0"}) {
    expect_refusal(simulate("1f1b", "4", "8", {"--times", times}), 2, {"--times", times});
  }
  expect_refusal(simulate("1f1b", "4", "8", {"--vocabulary-times", "1"}), 2, {"S,T"});
  expect_refusal(simulate("1f1b", "4", "8", {"--vocabulary", "3"}), 2, {"algorithm 3"});
  expect_refusal(simulate("zb-v", "4", "8", {"--vocabulary", "1"}), 2, {"zb-v", "v-half"});
  expect_refusal(simulate("1f1b", "2", "2", {"--svg", "no/such/folder/a.svg"}), 3, {"a.svg"});
}

Words simulate_network(const std::string& pattern, const Words& more = {}) {
  Words words = {"simulate", "network", "--pattern", pattern, "--bytes", "64e6"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(SimulateNetwork, PrintsCompletionLoadAndSlowestFlowAsJson) {
  const Outcome outcome = run_heddle(simulate_network(
      "exchange", {"--leaves", "4", "--spines", "4", "--hosts-per-leaf", "4", "--routing", "split",
                   "--host-gbps", "8", "--fabric-gbps", "8", "--latency-ns", "0", "--json"}));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  const Json report = parse_json(outcome.out, "stdout");
  EXPECT_NEAR(report.at("completion_seconds"), 0.064, 1e-9);
  EXPECT_DOUBLE_EQ(report.at("congestion_over_spray"), 1.0);
  EXPECT_EQ(report.at("messages"), 16);
  EXPECT_EQ(report.at("pieces"), 64);
  EXPECT_EQ(report.at("link_utilisation").at("fabric").at("histogram").at(9), 32);
  EXPECT_NEAR(report.at("slowest_flow").at("end_seconds"), 0.064, 1e-9);
}

TEST(SimulateNetwork, PrintsMeanAndWorstOfSeeds) {
  const Outcome outcome =
      run_heddle(simulate_network("exchange", {"--topology", "fat-tree", "--k", "4", "--seeds", "9",
                                               "--placement", "random", "--jitter-us", "5"}));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("  9 seeds"), std::string::npos) << outcome.out;
}

TEST(SimulateNetwork, RefusesWhatCannotBePlayed) {
  expect_refusal({"simulate", "network"}, 2, {"--pattern"});
  expect_refusal(simulate_network("zigzag"), 2, {"zigzag", "halving-doubling"});
  expect_refusal(simulate_network("ring", {"--routing", "hash"}), 2, {"--routing", "spray"});
  expect_refusal(simulate_network("ring", {"--fabric-gbps", "0"}), 2, {"leaf0-spine0", "capacity"});
  expect_refusal(simulate_network("ring", {"--host-gbps", "-1"}), 2, {"host0-leaf0", "capacity"});
  expect_refusal(simulate_network("ring", {"--latency-ns", "nan"}), 2, {"latency"});
  expect_refusal(simulate_network("ring", {"--spines", "0"}), 2, {"spines = 0"});
  expect_refusal(simulate_network("ring", {"--ranks", "300"}), 2, {"300 ranks", "256 hosts"});
  expect_refusal(simulate_network("ring", {"--cut", "leaf0-spine99"}), 2, {"leaf0-spine99"});
  expect_refusal(simulate_network("ring", {"--spines", "1", "--cut", "leaf3-spine0"}), 4,
                 {"no path", "leaf3"});
  expect_refusal(simulate_network("halving-doubling", {"--ranks", "12"}), 2,
                 {"12", "power of two"});
  expect_refusal(simulate_network("all-to-all", {"--leaves", "1000"}), 2, {"too many"});
  expect_refusal(simulate_network("tree", {"--chunks", "0"}), 2, {"0 chunks"});
  expect_refusal(simulate_network("ring", {"--ways", "0"}), 2, {"0 ways"});
}

}  // namespace
}  // namespace heddle
