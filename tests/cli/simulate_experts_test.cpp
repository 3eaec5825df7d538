#include <string>

#include "base/file_system.h"
#include "base/json.h"
#include "cli/refusals.h"
#include "support/source_dir.h"

namespace heddle {
namespace {

/// A layer on the 32 GPUs of the FSMoE paper.
std::vector<std::string> simulate_experts(const std::vector<std::string>& more = {}) {
  std::vector<std::string> words = {"simulate",  "experts",
                                    "--seq",     "1024",
                                    "--hidden",  "2048",
                                    "--width",   "4096",
                                    "--rows",    "2.4",
                                    "--shards",  "4",
                                    "--gather",  "3.2e-2,1.68e-7",
                                    "--scatter", "3.91e-2,1.67e-7",
                                    "--sum",     "8.37e-2,5.99e-7"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

const std::vector<std::string> kRest = {"--exchange", "0.175,3.06e-7", "--product",
                                        "9.24e-2,4.42e-11"};

TEST(SimulateExperts, ComparesFourMethodsAsJson) {
  auto words = simulate_experts(kRest);
  words.insert(words.end(), {"--layers", "4", "--json"});
  const Outcome outcome = run_heddle(words);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json report = parse_json(outcome.out, "stdout");
  ASSERT_EQ(report.at("methods").size(), 4U);
  double before = 0.99;
  for (const Json& method : report.at("methods")) {
    EXPECT_GE(method.at("speedup").get<double>(), before) << method.at("method");
    before = method.at("speedup").get<double>();
    ASSERT_EQ(method.at("backward").size(), 4U);
    double sent = method.at("gradients_behind").get<double>();
    for (const Json& layer : method.at("backward")) {
      sent += layer.at("gradients_with_experts").get<double>() +
              layer.at("gradients_with_dense").get<double>();
    }
    EXPECT_NEAR(sent, 4 * report.at("gradients").get<double>(), 1.0);
  }
  EXPECT_EQ(report.at("methods").at(3).at("method"), "lanes");
  EXPECT_GT(before, 1.05);
}

TEST(SimulateExperts, TakesAMachineFileTellsInTextAndDraws) {
  const TestFiles files;
  const Outcome outcome =
      run_heddle({"simulate", "experts", "--seq", "2048", "--hidden", "4096", "--width", "14336",
                  "--shards", "8", "--nodes", "8", "--system",
                  source_dir() + "/configs/systems/h200-hgx-ndr.toml", "--svg", files.at("a.svg")});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  for (const char* text : {"one layer of many", "pipelined", "windows", "lanes", "all 64 ranks",
                           "which is faster below"}) {
    EXPECT_NE(outcome.out.find(text), std::string::npos) << text << "\n" << outcome.out;
  }
  const std::string drawing = read_text_file(files.at("a.svg"));
  EXPECT_EQ(drawing.rfind("<svg", 0), 0U);
  EXPECT_NE(drawing.find("dispatch"), std::string::npos);
}

TEST(SimulateExperts, RefusesWhatCannotBe) {
  expect_refusal({"simulate", "experts"}, 2, {"--seq"});
  expect_refusal(simulate_experts(), 2, {"--exchange", "--product", "--system"});
  expect_refusal(simulate_experts({"--exchange", "1", "--product", "1,1"}), 2,
                 {"--exchange", "FIXED,EACH"});
  expect_refusal({"simulate", "experts", "--seq", "8", "--hidden", "8", "--width", "8", "--system",
                  source_dir() + "/configs/systems/h200-hgx-ndr.toml"},
                 2, {"--nodes"});
  expect_refusal(simulate_experts({"--shards", "0"}), 2, {"--shards"});
  expect_refusal(simulate_experts({"--products", "4"}), 2, {"--products"});
}

}  // namespace
}  // namespace heddle
