#include <fmt/format.h>

#include <string>

#include "base/json.h"
#include "cli/refusals.h"

namespace heddle {
namespace {

using Words = std::vector<std::string>;

/// Four nodes on a line, 1 MB/s between neighbours and less the further apart.
std::string four_nodes() {
  std::string links;
  for (int from = 0; from < 4; ++from) {
    for (int to = from + 1; to < 4; ++to) {
      links += fmt::format(
          R"({}{{"from": {}, "to": {}, "bytes_per_second": {}, "latency_seconds": 0.001}})",
          links.empty() ? "" : ", ", from, to, 1e6 / (to - from));
    }
  }
  return fmt::format(R"({{"ranks": 4, "links": [{}]}})", links);
}

class PlanRoutes : public testing::Test {
 protected:
  Words plan(const Words& more) const {
    Words words = {"plan",     "routes", files_.at("links.json"), "--message-bytes", "1e5",
                   "--starts", "1"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  TestFiles files_;
};

TEST_F(PlanRoutes, OfAChainAreWhatARunFileTakes) {
  files_.write("links.json", four_nodes());
  const Outcome outcome = run_heddle(plan({"--stages", "4", "--skip", "0.25", "--json"}));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json report = parse_json(outcome.out, "stdout");
  EXPECT_EQ(report.at("executable"), true);
  EXPECT_EQ(report.at("routes").size(), 6U);
  EXPECT_LT(report.at("seconds"), report.at("full").at("seconds"));
  const std::string routes = report.at("parallel.routes");
  // As the search says: the player of schedules takes them too.
  const Outcome played = run_heddle({"simulate", "--schedule", "routes", "--stages", "4",
                                     "--microbatches", "6", "--routes", routes, "--json"});
  ASSERT_EQ(played.status, 0) << played.err;
  const Outcome text = run_heddle(plan({"--stages", "4", "--skip", "0.25"}));
  EXPECT_NE(text.out.find("routes = \"" + routes + "\""), std::string::npos) << text.out;
}

TEST_F(PlanRoutes, OfSeveralNodesAStageSayWhatIsInFlight) {
  files_.write("links.json", four_nodes());
  const Outcome outcome = run_heddle(plan({"--nodes", "0,1 2 3", "--skip", "0.33"}));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("at most 3 micro-batches in flight on a node"), std::string::npos)
      << outcome.out;
  EXPECT_EQ(outcome.out.find("[parallel]"), std::string::npos);
}

/// report.json of a run whose ranks had two blocks each but for the first, which had none.
std::string report_of(const std::vector<double>& block_seconds) {
  Json speeds = Json::array();
  for (std::size_t rank = 0; rank < block_seconds.size(); ++rank) {
    speeds.push_back({{"rank", rank},
                      {"stage", rank},
                      {"blocks", rank == 0 ? 0 : 2},
                      {"block_seconds", block_seconds[rank]}});
  }
  return Json{{"starts", {{{"ranks", block_seconds.size()}}}}, {"speeds", speeds}}.dump();
}

TEST_F(PlanRoutes, GoByTheSpeedsThatARunHasMeasured) {
  files_.write("links.json", four_nodes());
  files_.write("report.json", report_of({0.0, 3.0, 12.0, 1.5}));
  const auto seconds = [&](const Words& more) {
    Words words = plan({"--stages", "4", "--skip", "0.25", "--json"});
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run_heddle(words);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return parse_json(outcome.out, "stdout").at("seconds").get<double>();
  };
  // A third of forward and backward, of two blocks; the first is taken for the slowest.
  EXPECT_EQ(seconds({"--speeds", files_.at("report.json")}), seconds({"--forward", "8,2,8,1"}));
  EXPECT_EQ(seconds({"--speeds", files_.at("report.json"), "--blocks", "1"}),
            seconds({"--forward", "4,1,4,0.5"}));
}

TEST_F(PlanRoutes, RefuseSpeedsOfOtherNodes) {
  files_.write("links.json", four_nodes());
  const auto expect = [&](const std::string& report, const std::string& words) {
    files_.write("report.json", report);
    expect_refusal(plan({"--stages", "4", "--speeds", files_.at("report.json")}), 2, {words});
  };
  expect(report_of({1.0, 1.0, 1.0}), "has no time of rank 3");
  expect(R"({"starts": [{"ranks": 4}], "speeds": []})", "has no speeds of ranks");
  expect(R"({"starts": [{"ranks": 4}], "speeds": [{"stage": 0, "block_seconds": 1}]})",
         "does not say how many blocks");
  files_.write("report.json", report_of({1.0, 1.0, 1.0, 1.0}));
  expect_refusal(plan({"--stages", "4", "--forward", "1", "--speeds", files_.at("report.json")}), 2,
                 {"--speeds", "--forward"});
}

TEST_F(PlanRoutes, RefuseWhatCannotBe) {
  files_.write("links.json", four_nodes());
  expect_refusal(plan({}), 2, {"--stages or --nodes is needed"});
  expect_refusal(plan({"--stages", "3"}), 2, {"4 nodes do not make 3 equal stages"});
  expect_refusal(plan({"--stages", "2.5"}), 2, {"--stages 2.5: 2.5 is no number of stages"});
  expect_refusal(plan({"--stages", "4", "--skip", "0.75"}), 2, {"routes of 1 of 4 stages"});
  expect_refusal(plan({"--nodes", "0,1 1 2"}), 2, {"node 1, which has a stage already"});
  expect_refusal(plan({"--nodes", "0,1 2 4"}), 2, {"node 4, which there is not"});
  expect_refusal(plan({"--stages", "4", "--forward", "1,2"}), 2, {"2 times for 4 nodes"});
  files_.write("links.json", R"({"links": [{"from": 0, "to": 2, "bytes_per_second": 1,
                                             "latency_seconds": 0}]})");
  expect_refusal(plan({"--stages", "3"}), 2, {"has no link between nodes 0 and 1"});
  files_.write("links.json", R"({"links": [{"from": 0, "to": 1}]})");
  expect_refusal(plan({"--stages", "2"}), 2, {"without from, to, bytes_per_second"});
}

TEST(SimulateRoutes, DrawsSkipsAndSwaps) {
  const auto simulated = [](const Words& more) {
    Words words = {"simulate", "--schedule", "routes", "--stages", "6", "--microbatches", "10"};
    words.insert(words.end(), more.begin(), more.end());
    return run_heddle(words);
  };
  const Outcome all = simulated({"--json"}), some = simulated({"--skip", "0.33", "--json"});
  ASSERT_EQ(some.status, 0) << some.err;
  EXPECT_LT(parse_json(some.out, "stdout").at("makespan"),
            parse_json(all.out, "stdout").at("makespan"));
  EXPECT_EQ(simulated({"--routes", "swap"}).status, 0);
  expect_refusal(
      {"simulate", "--schedule", "1f1b", "--stages", "6", "--microbatches", "4", "--skip", "0.33"},
      2, {"schedule 1f1b lets every micro-batch visit all stages in order"});
}

}  // namespace
}  // namespace heddle
