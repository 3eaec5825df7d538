#include <string>

#include "base/json.h"
#include "cli/refusals.h"
#include "support/source_dir.h"

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
  expect_refusal(simulate("1f1b", "2", "2", {"--svg", "/dev/null/a.svg"}), 3, {"/dev/null"});
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

Words simulate_step(const Words& more) {
  Words words = {"simulate",  "step",     "--model",
                 "llama3-8b", "--system", source_dir() + "/configs/systems/h200-hgx-ndr.toml"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

double simulated_seconds(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  words.push_back("--json");
  const Outcome outcome = run_heddle(simulate_step(words));
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  return parse_json(outcome.out, "stdout").at("step_seconds").get<double>();
}

TEST(SimulateStep, PrintsWhereTheTimeGoesAsJson) {
  const Outcome outcome = run_heddle(
      simulate_step({"--gpus", "64", "--batch-tokens", "1048576", "--seq", "4096", "--tp", "4",
                     "--pp", "4", "--schedule", "zb-h1", "--zero", "1", "--json"}));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  const Json report = parse_json(outcome.out, "stdout");
  const double step = report.at("step_seconds");
  double sum = 0.0;
  for (const auto& [name, seconds] : report.at("seconds").items()) {
    if (name.find("_hidden") == std::string::npos) sum += seconds.get<double>();
  }
  EXPECT_NEAR(sum, step, 1e-9 * step);
  EXPECT_EQ(report.at("microbatches"), 64);
  EXPECT_EQ(report.at("ranks").size(), 4u);
  EXPECT_EQ(report.at("ranks").at(3).at("device"), 48);
  EXPECT_GT(report.at("mfu"), 0.1);
  // Every message between stages of an inner rank: 64 activations and 64 gradients.
  std::int64_t sends = 0;
  for (const Json& size : report.at("messages").at(1)) {
    if (size.at("group") == "pp" && size.at("operation") == "send") {
      sends += size.at("calls").get<std::int64_t>();
    }
  }
  EXPECT_EQ(sends, 128);
}

TEST(SimulateStep, TakesThePlanOfThePlannerAndWritesATrace) {
  const TestFiles files;
  const Outcome planned =
      run_heddle({"plan", "--model", "llama3-8b", "--system",
                  source_dir() + "/configs/systems/h200-hgx-ndr.toml", "--gpus", "16",
                  "--batch-tokens", "524288", "--out", files.at("plan.toml")});
  ASSERT_EQ(planned.status, 0) << planned.err;
  const Outcome outcome = run_heddle(
      simulate_step({"--plan", files.at("plan.toml"), "--trace", files.at("step.json")}));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("llama3-8b on 16 x H200"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("calls"), std::string::npos);
  const Json trace = parse_json(read_text_file(files.at("step.json")), "step.json");
  bool has_step = false;
  for (const Json& event : trace.at("traceEvents")) has_step |= event.at("name") == "step";
  EXPECT_TRUE(has_step);
}

TEST(SimulateStep, TakesTheOptimizerOfThePlanUnlessAnotherIsGiven) {
  const TestFiles files;
  files.write("plan.toml", "[optim]\nname = \"muon\"\n");
  const auto seconds = [](const Words& more) {
    return simulated_seconds({"--gpus", "8", "--batch-tokens", "131072", "--seq", "4096"}, more);
  };
  const double adamw = seconds({}), muon = seconds({"--optimizer", "muon"});
  EXPECT_NE(adamw, muon);
  EXPECT_EQ(seconds({"--plan", files.at("plan.toml")}), muon);
  EXPECT_EQ(seconds({"--plan", files.at("plan.toml"), "--optimizer", "adamw"}), adamw);
}

TEST(SimulateStep, SlowsDownWithAStragglerAndWithHashedPaths) {
  const auto seconds = [](const Words& more) {
    return simulated_seconds({"--gpus", "32", "--batch-tokens", "262144", "--pp", "4"}, more);
  };
  const double plain = seconds({});
  EXPECT_GT(seconds({"--straggler", "9=1.5"}), 1.2 * plain);
  EXPECT_GT(seconds({"--vary", "--seed", "3"}), plain);
  const Words leaves = {"--topology",       "leaf-spine", "--leaves",      "4",  "--spines", "4",
                        "--hosts-per-leaf", "8",          "--fabric-gbps", "200"};
  EXPECT_GT(seconds(leaves), plain);
}

TEST(SimulateStep, OfSitesIsTheMeanBetweenTwoExchanges) {
  const Words common = {"--dp", "8", "--batch-tokens", "1048576", "--seq", "4096"};
  Words sites = common;
  sites.insert(sites.end(), {"--sites", "2", "--every", "10", "--fragments", "2", "--delay", "0",
                             "--outer-codec", "none", "--json"});
  const Outcome outcome = run_heddle(simulate_step(sites));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json report = parse_json(outcome.out, "stdout");
  EXPECT_EQ(report.at("gpus"), 16);
  const Json& times = report.at("sites");
  const double mean = report.at("step_seconds"), inner = times.at("inner_seconds");
  EXPECT_NEAR(
      mean,
      inner + times.at("waited_seconds").get<double>() + times.at("work_seconds").get<double>(),
      1e-9);
  EXPECT_GT(times.at("waited_seconds").get<double>(), 0.0);
  EXPECT_NEAR(times.at("utilisation").get<double>(), inner / mean, 1e-9);
  // A site has half of the batch. With ZeRO 1 a rank has an eighth of 8 billion float32 values.
  EXPECT_NEAR(inner,
              simulated_seconds({"--dp", "8", "--batch-tokens", "524288", "--seq", "4096"}, {}),
              1e-9);
  EXPECT_NEAR(times.at("sent_bytes_per_step").get<double>(), 8.03e9 / 8 * 4 / 10, 1e6);
  Words late = common;
  late.insert(late.end(), {"--sites", "2", "--every", "10", "--delay", "10"});
  expect_refusal(simulate_step(late), 2, {"outer.delay = 10", "outer.every = 10"});
  expect_refusal(simulate_step({"--sites", "3", "--dp", "1", "--batch-tokens", "8192"}), 2,
                 {"cannot be divided over 3 sites"});
}

TEST(SimulateStep, RefusesWhatCannotBePlayed) {
  const Words job = {"--gpus", "8", "--batch-tokens", "65536"};
  const auto with = [&](const Words& more) {
    Words words = job;
    words.insert(words.end(), more.begin(), more.end());
    return simulate_step(words);
  };
  expect_refusal({"simulate", "step"}, 2, {"--model"});
  expect_refusal(simulate_step({"--cp", "2", "--stack", "megatron", "--batch-tokens", "65536"}), 2,
                 {"megatron", "parallel.cp = 2", "--stack heddle"});
  expect_refusal(simulate_step({"--cp", "3", "--context", "ulysses", "--batch-tokens", "65536"}), 2,
                 {"ulysses", "cp = 3"});
  expect_refusal(simulate_step({"--gpus", "8"}), 2, {"--batch-tokens"});
  expect_refusal(with({"--tp", "3"}), 2, {"tp 3", "8 ranks"});
  expect_refusal(with({"--tp", "two"}), 2, {"parallel.tp"});
  expect_refusal(with({"--schedule", "zigzag"}), 2, {"parallel.schedule", "1f1b"});
  expect_refusal(with({"--zero", "4"}), 2, {"parallel.zero"});
  expect_refusal(with({"--chunks", "2", "--pp", "2"}), 2, {"chunk"});
  expect_refusal(with({"--microbatch", "3"}), 2, {"32 sequences", "--batch-tokens"});
  expect_refusal(with({"--straggler", "9=2"}), 2, {"device 9", "0 to 7"});
  expect_refusal(with({"--straggler", "nine"}), 2, {"--straggler nine", "12=1.5"});
  expect_refusal(with({"--topology", "switch", "--hosts", "4"}), 2, {"4 hosts", "8 devices"});
  expect_refusal(with({"--plan", "none.toml"}), 2, {"none.toml"});
  expect_refusal(with({"--trace", "/dev/null/a.json"}), 3, {"/dev/null"});
  expect_refusal(simulate_step({"--gpus", "8", "--batch-tokens", "107374182400", "--pp", "8"}), 2,
                 {"passes to simulate"});
}

}  // namespace
}  // namespace heddle
