#include <string>

#include "base/json.h"
#include "cli/refusals.h"
#include "support/source_dir.h"

namespace heddle {
namespace {

std::vector<std::string> simulate_decode(const std::string& cp, const std::string& heads,
                                         const std::vector<std::string>& more = {}) {
  std::vector<std::string> words = {
      "simulate",   "decode",
      "--cp",       cp,
      "--context",  "65536",
      "--heads",    heads,
      "--kv-heads", "4",
      "--head-dim", "64",
      "--system",   source_dir() + "/configs/systems/h100-dgx-ndr.toml"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(SimulateDecode, PrintsTimesAndBytesOfAllMethodsAsJson) {
  const Outcome outcome = run_heddle(simulate_decode("16", "8", {"--json"}));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json report = parse_json(outcome.out, "stdout");
  EXPECT_EQ(report.at("cp"), 16);
  ASSERT_EQ(report.at("methods").size(), 3U);
  const Json &tree = report.at("methods").at(0), &ring = report.at("methods").at(1);
  EXPECT_EQ(tree.at("method"), "tree");
  EXPECT_EQ(tree.at("sent_bytes"), 4 * 4 * 8 * (64 + 1));  // four exchanges in f32
  EXPECT_EQ(ring.at("sent_bytes"), 15 * 2 * 2 * 4096 * 4 * 64);
  EXPECT_LT(tree.at("seconds").get<double>(), ring.at("seconds").get<double>());
}

TEST(SimulateDecode, AddsTheFixedTimeOfACallToEachMethod) {
  const auto ring_seconds = [](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"--method", "ring", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run_heddle(simulate_decode("4", "8", words));
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    const Json report = parse_json(outcome.out, "stdout");
    EXPECT_EQ(report.at("methods").size(), 1U);
    return report.at("methods").at(0).at("seconds").get<double>();
  };
  EXPECT_NEAR(ring_seconds({"--fixed-ms", "3"}) - ring_seconds({}), 3e-3, 1e-9);
}

TEST(SimulateDecode, TellsInText) {
  const Outcome outcome = run_heddle(simulate_decode("2", "8"));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  for (const char* text : {"one new token behind 65,536 on 2 ranks", "tree", "ring", "gather"}) {
    EXPECT_NE(outcome.out.find(text), std::string::npos) << text << "\n" << outcome.out;
  }
}

TEST(SimulateDecode, RefusesWhatCannotBe) {
  expect_refusal(simulate_decode("0", "6"), 2, {"ranks = 0", "6 query heads", "4 key heads"});
  expect_refusal(simulate_decode("100000", "8"), 2, {"100000 ranks", "512"});
  expect_refusal(simulate_decode("4", "8", {"--method", "star"}), 2, {"star", "tree"});
  expect_refusal(simulate_decode("4", "8", {"--fixed-ms", "-1"}), 2, {"--fixed-ms"});
}

}  // namespace
}  // namespace heddle
