#include <string>

#include "base/file_system.h"
#include "base/json.h"
#include "checkpoint/routing_trace.h"
#include "cli/refusals.h"
#include "support/source_dir.h"
#include "verify/shared_files.h"

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

  /// Of the model that the trace is of.
  void write_config() {
    const Json config = {{"model_type", "olmoe"},    {"vocab_size", 50},
                         {"hidden_size", 24},        {"num_hidden_layers", 3},
                         {"num_attention_heads", 3}, {"num_key_value_heads", 3},
                         {"intermediate_size", 40},  {"rope_theta", 10000.0},
                         {"num_experts", 4},         {"num_experts_per_tok", 1}};
    write_file_atomically(real_file_system(), files_.at("config.json"), config.dump());
  }

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
  write_config();
  const Outcome outcome = run_heddle({"plan", "experts", files_.at("trace"), "--ranks", "2",
                                      "--model", files_.at("config.json"), "--latency-us", "100"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  for (const char* text : {"no placement has fewer", "contiguous experts 1.0000", "10 calls",
                           "7 calls", "one exchange would be faster"}) {
    EXPECT_NE(outcome.out.find(text), std::string::npos) << text << "\n" << outcome.out;
  }
}

TEST_F(PlanExperts, CountsSequencesOfRanksInTheirType) {
  write_config();
  const auto bytes = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"plan", "experts", files_.at("trace"),       "--ranks",
                                      "2",    "--model", files_.at("config.json"), "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run_heddle(words);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return parse_json(outcome.out, "stdout").at("generation").at("two_exchanges").at("bytes");
  };
  // Half of the rows of 24 leave, there and back in 3 layers; counts of 4 experts, and tokens.
  EXPECT_EQ(bytes({}), 72 * 2 + 3 * 5 * 4 + 4);
  EXPECT_EQ(bytes({"--sequences", "4", "--dtype", "f32"}), 4 * 72 * 4 + 3 * 5 * 4 + 4 * 4);
}

/// Two experts a token: two rows, and only two exchanges.
TEST_F(PlanExperts, CountsARowForEachExpertOfAToken) {
  write_config();
  RoutingTrace trace = halves();
  trace.choices = 2;
  for (std::size_t i = 0; i < trace.taken.size(); i += 2) {
    trace.taken.insert(trace.taken.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                       (trace.taken[i] + 1) % 4);
  }
  write_routing_trace(real_file_system(), files_.at("two"), trace);
  std::vector<std::string> words = {"plan", "experts", files_.at("two"),        "--ranks",
                                    "2",    "--model", files_.at("config.json")};
  const Outcome text = run_heddle(words);
  ASSERT_EQ(text.status, 0) << text.err;
  EXPECT_NE(text.out.find("here tokens have 2"), std::string::npos) << text.out;
  words.emplace_back("--json");
  const Json generation = parse_json(run_heddle(words).out, "stdout").at("generation");
  EXPECT_EQ(generation.at("two_exchanges").at("bytes"), 2 * 72 * 2 + 3 * 5 * 4 + 4);
  EXPECT_FALSE(generation.contains("one_exchange"));
}

TEST_F(PlanExperts, RefusesWhatCannotBe) {
  const std::string trace = files_.at("trace");
  expect_refusal({"plan", "experts", trace}, 2, {"--ranks"});
  expect_refusal({"plan", "experts", trace, "--ranks", "3"}, 2, {"--ranks 3", "4 experts"});
  expect_refusal({"plan", "experts", trace, "--ranks", "2", "--nodes", "3"}, 2,
                 {"--nodes 3", "--ranks 2"});
  expect_refusal({"plan", "experts", files_.at("absent"), "--ranks", "2"}, 5, {"absent"});
  expect_refusal({"plan", "experts", trace, "--ranks", "2", "--model",
                  source_dir() + "/configs/models/llama-15m.json"},
                 2, {"3 layers with 4 experts"});
}

TEST_F(PlanExperts, ConvertRefusesAPlacementOfAnotherModel) {
  write_expert_placement(real_file_system(), files_.at("placement.json"),
                         contiguous_placement(3, 4, 2));
  expect_refusal({"convert", source_dir() + "/tests/reference/models/llama", "--placement",
                  files_.at("placement.json"), "--out", files_.at("out")},
                 2, {"no experts"});
}

/// A model that PyTorch computed something with: logits and greedy text are still its own when
/// experts have other numbers. (Its gradients are by the old numbers.)
TEST_F(PlanExperts, ARenumberedModelComputesWhatTheReferenceDoes) {
  const std::filesystem::path model = shared_folder() / "fixtures" / "models" / "olmoe";
  if (!std::filesystem::exists(model / "reference.safetensors")) {
    GTEST_SKIP() << model << " is absent";
  }
  write_expert_placement(
      real_file_system(), files_.at("placement.json"),
      {.ranks = 4, .rank_of = {{3, 1, 0, 2, 2, 1, 0, 3}, {0, 1, 2, 3, 3, 2, 1, 0}}});
  const std::string out = files_.at("renumbered");
  const Outcome converted = run_heddle(
      {"convert", model.string(), "--placement", files_.at("placement.json"), "--out", out});
  ASSERT_EQ(converted.status, 0) << converted.err;
  std::filesystem::copy_file(model / "reference.safetensors", out + "/reference.safetensors");
  const Json report = parse_json(run_heddle({"verify", "reference", out, "--json"}).out, "verify");
  EXPECT_LT(report.at("logits_rel").get<double>(), 1e-5);
  EXPECT_LT(report.at("loss_abs").get<double>(), 1e-5);
  EXPECT_EQ(report.at("greedy_equal"), true);
  EXPECT_NE(report.at("grad_worst").get<std::string>().find("mlp"), std::string::npos);
}

}  // namespace
}  // namespace heddle
