#include <string>

#include "base/json.h"
#include "cli/refusals.h"

namespace heddle {
namespace {

using Words = std::vector<std::string>;

Words simulate_context(const std::string& method, const std::string& cp, const std::string& seq,
                       const Words& more = {}) {
  Words words = {"simulate", "context", "--method", method,       "--cp", cp,           "--seq",
                 seq,        "--heads", "8",        "--kv-heads", "4",    "--head-dim", "16"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Json report_of(Words words) {
  words.push_back("--json");
  const Outcome outcome = run_heddle(words);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  return parse_json(outcome.out, "stdout");
}

TEST(SimulateContext, PrintsTimesBytesAndPairsAsJson) {
  const Json report = report_of(simulate_context("ring", "4", "64", {"--times", "2,0.5"}));
  EXPECT_EQ(report.at("method"), "ring");
  EXPECT_EQ(report.at("order"), "zigzag");
  EXPECT_EQ(report.at("rounds"), 4 + 5);
  EXPECT_EQ(report.at("pairs_by_rank"), Json::parse("[520, 520, 520, 520]"));
  // K and V of three blocks of 16 tokens in bf16; backward the same and their gradients in f32.
  const int block = 2 * 16 * 4 * 16;
  EXPECT_EQ(report.at("forward").at("bytes_by_rank").at(2), 3 * block * 2);
  EXPECT_EQ(report.at("backward").at("bytes_by_rank").at(2), 3 * block * (2 + 4));
  EXPECT_EQ(report.at("backward").at("elements_by_rank").at(2), 3 * block * 2);
  EXPECT_EQ(report.at("bytes_by_rank").at(2), 3 * block * (2 + 2 + 4));
  const double forward = report.at("forward").at("makespan"), both = report.at("makespan");
  EXPECT_DOUBLE_EQ(both, forward + report.at("backward").at("makespan").get<double>());
  EXPECT_GT(report.at("exposed_fraction"), 0.5);
  EXPECT_LE(report.at("exposed_fraction"), report.at("idle_fraction"));
}

TEST(SimulateContext, PlaysEveryMethodAndOrder) {
  for (const std::string method : {"ring", "gather", "ulysses", "usp", "lightseq", "tokenring"}) {
    for (const std::string order : {"auto", "contiguous", "zigzag", "striped"}) {
      if (method == "lightseq" && order != "auto" && order != "contiguous") continue;
      const Json report = report_of(simulate_context(method, "8", "101", {"--order", order}));
      double pairs = 0.0;
      for (const double count : report.at("pairs_by_rank")) pairs += count;
      EXPECT_NEAR(pairs, 101 * 51, 1e-9) << method << " " << order;
    }
  }
}

TEST(SimulateContext, LeavesOutWhatNoWindowReaches) {
  const Json report =
      report_of(simulate_context("ring", "4", "64", {"--order", "contiguous", "--window", "5"}));
  EXPECT_EQ(report.at("window"), 5);
  // Every rank but the last sends four keys to the next one.
  const int keys = 2 * 4 * 4 * 16;
  EXPECT_EQ(report.at("forward").at("bytes_by_rank"), Json({keys * 2, keys * 2, keys * 2, 0}));
  EXPECT_EQ(report.at("pairs_by_rank"), Json::parse("[70, 80, 80, 80]"));
  EXPECT_EQ(report_of(simulate_context("ring", "4", "64", {"--window", "64"})).at("window"),
            nullptr);
  expect_refusal(simulate_context("ring", "4", "64", {"--window", "0"}), 2,
                 {"--window 0 is not possible; use 1 or more"});
}

TEST(SimulateContext, LeavesOutWhatDocumentsDoNotNeed) {
  const TestFiles files;
  const std::string documents = files.write("documents.txt", "16\n\n 16 \n16\n10\n6\n");
  const Json report = report_of(
      simulate_context("ring", "4", "64", {"--documents", documents, "--order", "contiguous"}));
  EXPECT_EQ(report.at("documents"), 5);
  EXPECT_EQ(report.at("bytes_by_rank"), Json::parse("[0, 0, 0, 0]"));
  EXPECT_EQ(report.at("pairs_by_rank"), Json::parse("[136, 136, 136, 76]"));
}

TEST(SimulateContext, TellsInTextAndDraws) {
  const TestFiles files;
  const Outcome outcome = run_heddle(
      simulate_context("usp", "4", "4096", {"--svg", files.at("a.svg"), "--context-heads", "2"}));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  for (const char* text : {"usp in zigzag order: 4 ranks, 4,096 tokens in 1 document",
                           "heads divided over 2", "idle_fraction", "exposed_fraction", "rank 3"}) {
    EXPECT_NE(outcome.out.find(text), std::string::npos) << text << "\n" << outcome.out;
  }
  EXPECT_EQ(read_text_file(files.at("a.svg")).substr(0, 4), "<svg");
}

TEST(SimulateContext, RefusesAllThatIsWrongAtOnce) {
  const TestFiles files;
  const std::string bad = files.write("bad.txt", "12\nlong\n-3\n");
  expect_refusal({"simulate", "context"}, 2,
                 {"--method is missing", "--cp is missing", "--head-dim is missing"});
  expect_refusal(simulate_context("rings", "4", "64", {"--order", "zig", "--times", "1"}), 2,
                 {"--method rings", "lightseq", "--order zig", "striped", "COMPUTE,LINK"});
  expect_refusal(simulate_context("ulysses", "3", "64", {"--context-heads", "2"}), 2,
                 {"--cp 3", "use --cp 1, 2, 4 or 8", "--context-heads 2 is for --method usp"});
  expect_refusal(simulate_context("lightseq", "4", "64", {"--order", "striped"}), 2,
                 {"order striped", "contiguous"});
  expect_refusal(simulate_context("ring", "0", "-5"), 2, {"--cp 0", "--seq -5"});
  expect_refusal(simulate_context("ring", "4", "64", {"--documents", bad}), 2,
                 {"bad.txt:2: \"long\"", "bad.txt:3: \"-3\"", "12 tokens"});
  expect_refusal(simulate_context("ring", "4", "64", {"--documents", files.write("none", "\n")}), 2,
                 {"no documents"});
  expect_refusal(simulate_context("ring", "4", "64", {"--documents", "no/such"}), 5, {"no/such"});
  expect_refusal(simulate_context("ring", "100000", "64"), 2, {"too much to simulate"});
  expect_refusal(simulate_context("ring", "4", "4000000000000000000"), 2, {"too long to simulate"});
  expect_refusal(simulate_context("ring", "4", "64", {"--dtype", "f8"}), 2, {"--dtype"});
  expect_refusal(simulate_context("ring", "4", "64", {"--svg", "/dev/null/a.svg"}), 3,
                 {"/dev/null"});
}

}  // namespace
}  // namespace heddle
