#include <string>

#include "base/file_system.h"
#include "base/json.h"
#include "checkpoint/routing_trace.h"
#include "cli/refusals.h"

namespace heddle {
namespace {

/// Tokens that alternate between two halves of 4 experts: no hops on two ranks if placed well.
RoutingTrace halves() {
  RoutingTrace trace{.experts = 4, .layers = 3, .choices = 1, .taken = {}};
  for (std::int32_t token = 0; token < 40; ++token) {
    const std::int32_t half = token % 2, which = token / 2 % 2;
    for (const std::int32_t expert : {2 * which + half, 2 * half + which, 2 * which + half}) {
      trace.taken.push_back(expert);
    }
  }
  return trace;
}

class PlanExperts : public testing::Test {
 protected:
  PlanExperts() { write_routing_trace(real_file_system(), files_.at("trace"), halves()); }

  TestFiles files_;
};

TEST_F(PlanExperts, FindsAPlacementAndWritesIt) {
  const Outcome outcome = run_heddle({"plan", "experts", files_.at("trace"), "--ranks", "2",
                                      "--out", files_.at("placement.json"), "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json report = parse_json(outcome.out, "stdout");
  EXPECT_EQ(report.at("tokens"), 40);
  EXPECT_EQ(report.at("hops"), 0.0);
  EXPECT_EQ(report.at("hops_contiguous"), 1.0);
  EXPECT_EQ(report.at("exact"), true);
  EXPECT_EQ(report.at("gap_percent"), 0.0);
  EXPECT_EQ(report.at("worst_load"), 1.0);
  const ExpertPlacement placement = read_expert_placement(files_.at("placement.json"));
  EXPECT_EQ(placement.rank_of, report.at("rank_of").get<std::vector<std::vector<int>>>());
}

TEST_F(PlanExperts, TellsInTextWhatGenerationSends) {
  const Json config = {{"model_type", "olmoe"},    {"vocab_size", 50},
                       {"hidden_size", 24},        {"num_hidden_layers", 3},
                       {"num_attention_heads", 3}, {"num_key_value_heads", 3},
                       {"intermediate_size", 40},  {"rope_theta", 10000.0},
                       {"num_experts", 4},         {"num_experts_per_tok", 1}};
  write_file_atomically(real_file_system(), files_.at("config.json"), config.dump());
  const Outcome outcome = run_heddle({"plan", "experts", files_.at("trace"), "--ranks", "2",
                                      "--model", files_.at("config.json"), "--latency-us", "100"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  for (const char* text : {"no placement has fewer", "contiguous experts 1.0000", "6 calls",
                           "4 calls", "one exchange would be faster"}) {
    EXPECT_NE(outcome.out.find(text), std::string::npos) << text << "\n" << outcome.out;
  }
}

TEST_F(PlanExperts, RefusesWhatCannotBe) {
  const std::string trace = files_.at("trace");
  expect_refusal({"plan", "experts", trace}, 2, {"--ranks"});
  expect_refusal({"plan", "experts", trace, "--ranks", "3"}, 2, {"--ranks 3", "4 experts"});
  expect_refusal({"plan", "experts", trace, "--ranks", "2", "--nodes", "3"}, 2,
                 {"--nodes 3", "--ranks 2"});
  expect_refusal({"plan", "experts", files_.at("absent"), "--ranks", "2"}, 5, {"absent"});
  expect_refusal({"plan", "experts", trace, "--ranks", "2", "--model",
                  HEDDLE_SOURCE_DIR "/configs/models/llama-15m.json"},
                 2, {"3 layers with 4 experts"});
}

TEST_F(PlanExperts, ConvertRefusesAPlacementOfAnotherModel) {
  write_expert_placement(real_file_system(), files_.at("placement.json"),
                         contiguous_placement(3, 4, 2));
  expect_refusal({"convert", HEDDLE_SOURCE_DIR "/tests/reference/models/llama", "--placement",
                  files_.at("placement.json"), "--out", files_.at("out")},
                 2, {"no experts"});
}

}  // namespace
}  // namespace heddle
