#include <string>

#include "base/json.h"
#include "cli/refusals.h"
#include "support/source_dir.h"

namespace heddle {
namespace {

using Words = std::vector<std::string>;

std::string system_file(const std::string& name = "a100-800g") {
  return source_dir() + "/configs/systems/" + name + ".toml";
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

TEST(Plan, OverGivenLinksSaysWhatToSendLessOf) {
  const TestFiles files;
  const Outcome outcome =
      run_heddle(plan("gpt2-124m", "16", "131072",
                      {"--links", "rate=1gbit,delay=10ms,loss=0.1%", "--json", "--out",
                       files.at("plan.toml"), "--report", files.at("plan.html")}));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json report = parse_json(outcome.out, "stdout");
  const Json& links = report.at("links");
  EXPECT_EQ(links.at("given"), "1 Gbit/s, 10 ms, 0.1 % lost");
  EXPECT_EQ(links.at("bytes_per_second"), 125e6);
  const Json& rows = links.at("rows");
  EXPECT_EQ(rows.at(0).at("what"), "plain");
  EXPECT_EQ(rows.at(0).at("step_seconds"), report.at("plans").at(0).at("step_seconds"));
  const Json& best = rows.at(links.at("advised").get<std::size_t>());
  EXPECT_GT(best.at("gain").get<double>(), 1.05);
  EXPECT_NEAR(best.at("gain").get<double>(),
              rows.at(0).at("step_seconds").get<double>() / best.at("step_seconds").get<double>(),
              1e-12);
  EXPECT_NE(read_text_file(files.at("plan.html")).find("id=\"links\""), std::string::npos);
  // What is advised is simulated to take the time that was said.
  const Outcome played = run_heddle({"simulate", "step", "--model", "gpt2-124m", "--system",
                                     system_file(), "--plan", files.at("plan.toml"), "--json"});
  EXPECT_EQ(played.status, 0) << played.err;
}

TEST(Plan, TakesTheSlowestOfMeasuredLinks) {
  const TestFiles files;
  const auto measured = files.write("links.json",
                                    R"({"ranks": 2, "message_bytes": 1048576, "links": [
          {"from": 1, "to": 0, "bytes_per_second": 2e7, "latency_seconds": 0.02, "messages": 9},
          {"from": 0, "to": 1, "bytes_per_second": 1e7, "latency_seconds": 0.03, "messages": 9}]})");
  const Outcome outcome =
      run_heddle(plan("gpt2-124m", "16", "131072", {"--links", measured, "--json"}));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json report = parse_json(outcome.out, "stdout");
  EXPECT_EQ(report.at("links").at("bytes_per_second"), 1e7);
  EXPECT_EQ(report.at("links").at("latency_seconds"), 0.03);
  EXPECT_NE(report.at("links").at("given").get<std::string>().find("from rank 0 to 1"),
            std::string::npos);
}

TEST(Plan, RefusesLinksThatMakeNoSense) {
  const auto refuses = [](const std::string& links, const Words& mentions, int status = 2) {
    expect_refusal(plan("gpt2-124m", "16", "131072", {"--links", links}), status, mentions);
  };
  refuses("rate=fast", {"rate=fast", "mbit"});
  refuses("rate=100", {"rate=100", "mbit"});
  refuses("rate=0mbit", {"rate=0mbit carries nothing"});
  refuses("rate=1gbit,delay=-5ms", {"delay=-5ms is below 0"});
  refuses("rate=1gbit,delay=5min", {"delay=5min", "ms"});
  refuses("rate=1gbit,loss=50%", {"loss=50%", "at most 10%"});
  refuses("rate=1gbit,dealy=5ms", {"there is no \"dealy\"", "did you mean delay?"});
  refuses("delay=5ms", {"rate is missing"});
  refuses("rate=1gbit,devices=4", {"devices=4", "8 devices do"});
  const TestFiles files;
  refuses(files.write("other.json", "{\"rates\": []}"), {"other.json has no links"});
  refuses(files.write("empty.json", R"({"links": [{"from": 0, "to": 1, "bytes_per_second": 0}]})"),
          {"carried nothing"});
  refuses(files.at("none.json"), {"none.json"}, 5);
  expect_refusal(
      plan("gpt2-124m", "16", "131072", {"--links", "rate=1gbit", "--compress", "gradients=int8"}),
      2, {"--links", "--compress"});
  expect_refusal(
      plan("gpt2-124m", "16", "131072", {"--links", "rate=1gbit", "--optimizer", "onebit-adam"}), 2,
      {"onebit-adam", "leave --optimizer out"});
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
  expect_refusal(plan("llama3-8b", "16", "524288", {"--report", "/dev/null/plan.html"}), 3,
                 {"/dev/null"});
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
