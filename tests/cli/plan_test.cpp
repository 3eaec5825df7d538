#include <string>

#include "base/json.h"
#include "cli/refusals.h"

namespace heddle {
namespace {

using Words = std::vector<std::string>;

std::string system_file(const std::string& name = "a100-800g") {
  return std::string(HEDDLE_SOURCE_DIR) + "/configs/systems/" + name + ".toml";
}

Words plan(const std::string& model, const std::string& gpus, const std::string& tokens,
           const Words& more = {}) {
  Words words = {"plan", "--model",        model, "--system", system_file(), "--gpus",
                 gpus,   "--batch-tokens", tokens};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

constexpr const char* kHeader =
    "# GPUs,global batch,micro batch,hidden size,attention heads,# layers,sequence length,tensor "
    "parallelism,data parallelism,pipeline parallelism,iteration time (ms)\n";

TEST(Plan, PrintsOneJsonObject) {
  const Outcome outcome =
      run_heddle(plan("llama3-8b", "16", "524288", {"--seq", "4096", "--json"}));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json report = parse_json(outcome.out, "stdout");
  const Json& best = report.at("plans").at(0);
  EXPECT_EQ(best.at("tp").get<int>() * best.at("pp").get<int>() * best.at("dp").get<int>(), 16);
  EXPECT_GT(best.at("step_seconds").get<double>(), 0.0);
  EXPECT_LE(best.at("memory_bytes").at("total").get<double>(),
            report.at("memory_limit_bytes").get<double>());
}

TEST(Plan, WritesSectionsThatARunFileTakes) {
  const TestFiles files;
  const Outcome outcome =
      run_heddle(plan("gpt2-124m", "1", "8192", {"--out", files.at("plan.toml")}));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("best plan: "), std::string::npos) << outcome.out;
  const auto run = files.write(
      "run.toml", "[model]\npreset = \"gpt2-124m\"\n" + read_text_file(files.at("plan.toml")));
  const Outcome printed =
      run_heddle({"config", "print", run, "--set", "data.train=a", "--set", "train.steps=1"});
  EXPECT_EQ(printed.status, 0) << printed.err;
  EXPECT_NE(printed.out.find("1 steps of 8192 tokens"), std::string::npos) << printed.out;
}

TEST(Plan, SaysWhatIsCompressedAndWritesIt) {
  const TestFiles files;
  const Outcome outcome = run_heddle(plan("gpt2-124m", "8", "65536",
                                          {"--compress", "preset=zhybrid", "--compress",
                                           "gradients=int8", "--out", files.at("plan.toml")}));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("compressed: gradients int8:128, weights zfp:16:4, tensor zfp:16:4, "
                             "pipeline zfp:16:4"),
            std::string::npos)
      << outcome.out;
  EXPECT_NE(read_text_file(files.at("plan.toml")).find("[compress]\ngradients = \"int8:128\"\n"),
            std::string::npos);
  const Outcome refused =
      run_heddle(plan("gpt2-124m", "8", "65536", {"--compress", "gradients=int9"}));
  EXPECT_EQ(refused.status, 2);
  EXPECT_NE(refused.err.find("there is no codec \"int9\""), std::string::npos) << refused.err;
}

TEST(Plan, OfLongSequencesSharesThemSaysWhyAndCanBeSimulated) {
  const TestFiles files;
  const Outcome outcome = run_heddle(
      plan("llama3-8b", "64", "4194304", {"--seq", "1048576", "--out", files.at("plan.toml")}));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  for (const char* word : {", cp ", "  cp          ", "  method      ", " waits "}) {
    EXPECT_NE(outcome.out.find(word), std::string::npos) << word << "\n" << outcome.out;
  }
  const Outcome played = run_heddle({"simulate", "step", "--model", "llama3-8b", "--system",
                                     system_file(), "--plan", files.at("plan.toml"), "--json"});
  ASSERT_EQ(played.status, 0) << played.err;
  const Json step = parse_json(played.out, "stdout");
  EXPECT_EQ(step.at("gpus"), 64);
  EXPECT_NE(step.at("plan").get<std::string>().find(", cp "), std::string::npos);
  EXPECT_GT(step.at("seconds").at("cp"), 0.0);
}

TEST(Plan, WritesAPageThatNeedsNothingElse) {
  const TestFiles files;
  const Outcome outcome =
      run_heddle(plan("llama3-8b", "16", "524288", {"--report", files.at("plan.html"), "--json"}));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(parse_json(outcome.out, "stdout").contains("plans"));
  const std::string page = read_text_file(files.at("plan.html"));
  EXPECT_TRUE(page.starts_with("<!doctype html>"));
  EXPECT_NE(page.find("id=\"layouts\""), std::string::npos);
  EXPECT_EQ(page.find("src="), std::string::npos);
  expect_refusal(plan("llama3-8b", "16", "524288", {"--report", files.at("none/plan.html")}), 3,
                 {"none/plan.html"});
}

/// The shipped machine file with one piece of text replaced.
std::string edited(const std::string& what, const std::string& by) {
  std::string text = read_text_file(system_file());
  const auto at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), by);
}

TEST(Plan, RefusesMachineFilesThatSayTooLittleOrTheImpossible) {
  const TestFiles files;
  const auto refuses = [&](const std::string& text, const Words& mentions) {
    expect_refusal({"plan", "--model", "llama3-8b", "--system", files.write("m.toml", text),
                    "--gpus", "16", "--batch-tokens", "524288"},
                   2, mentions);
  };
  refuses(edited("[[link]]\nname = \"infiniband\"", "[[link]]\nreach = 64\nname = \"infiniband\""),
          {"m.toml", "link[1].reach", "no tier reaches further"});
  refuses(edited("gb_per_s = 12.5", "gb_per_s = 0"),
          {"m.toml", "link[1].gb_per_s", "not positive"});
  refuses(edited("gb_per_s = 300", "gb_per_s = 3e11"), {"m.toml", "link[0].gb_per_s", "GB/s"});
  refuses(edited("latency_us = 20", "latency_ms = 0.02"), {"m.toml", "latency_us", "missing"});
  refuses(edited("memory_gib = 80", "memory_gib = 80e9"), {"m.toml", "memory_gib", "GiB"});
}

TEST(Plan, RefusesWhatCannotBePlanned) {
  expect_refusal({"plan"}, 2, {"--model"});
  expect_refusal(plan("llama9", "8", "8192"), 2, {"llama9"});
  expect_refusal(plan("gpt3-175b", "8", "16384"), 3,
                 {"does not fit on 8 x A100", "times the", "devices"});
  expect_refusal(plan("llama3-8b", "8", "8191"), 2, {"--batch-tokens 8191", "multiple"});
  expect_refusal(plan("gpt2-124m", "8", "8192", {"--seq", "4096"}), 2, {"--seq 4096", "1024"});
  expect_refusal({"plan", "--model", "llama3-8b", "--system", "none.toml", "--gpus", "8",
                  "--batch-tokens", "16384"},
                 5, {"none.toml"});
}

TEST(PlanEvaluate, PrintsTheAccuracyOfRowsThatWereNotFitted) {
  const TestFiles files;
  std::string csv = kHeader;
  for (const int micro : {1, 2, 4, 8}) {
    csv += "8,64," + std::to_string(micro) + ",2048,16,24,1024,1,8,1,1000\n";
  }
  const auto rows = files.write("rows.csv", csv);
  const Outcome outcome =
      run_heddle({"plan", "evaluate", rows, "--system", system_file(), "--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json report = parse_json(outcome.out, "stdout");
  EXPECT_EQ(report.at("rows"), 4);
  EXPECT_LE(report.at("calibration_rows").get<int>(), 2);
  for (const char* key : {"mape_percent", "median_percent", "bias_percent", "worst_percent",
                          "spearman", "regret_percent", "split"}) {
    EXPECT_TRUE(report.contains(key)) << key;
  }
  EXPECT_EQ(report.at("regret_percent").size(), 1u);
}

TEST(PlanEvaluate, RefusesRowsThatAreNotMeasurements) {
  const TestFiles files;
  const auto evaluate = [&](const std::string& csv, const Words& mentions) {
    expect_refusal({"plan", "evaluate", files.write("rows.csv", csv), "--system", system_file()}, 5,
                   mentions);
  };
  evaluate("", {"rows.csv", "no rows"});
  evaluate("a,b\n1,2\n", {"rows.csv", "no column \"# GPUs\""});
  evaluate(std::string(kHeader) + "8,64,1,2048,16,24,1024,1,8\n", {"rows.csv:2", "9 values"});
  evaluate(std::string(kHeader) + "8,64,1,2048,16,24,1024,1,8,1,fast\n", {"rows.csv:2", "fast"});
  evaluate(std::string(kHeader) + "8,64,1,2048,16,24,1024,1,4,1,10\n", {"1 x 4 x 1", "8 GPUs"});
  evaluate(std::string(kHeader) + "8,64,3,2048,16,24,1024,1,8,1,10\n", {"do not divide", "64"});
}

}  // namespace
}  // namespace heddle
