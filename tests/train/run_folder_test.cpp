#include <gtest/gtest.h>

#include <set>

#include "checkpoint/hf_folder.h"
#include "model/registry.h"
#include "train/tiny_run.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

std::set<std::string> keys_of(const Json& line) {
  std::set<std::string> keys;
  for (const auto& [key, value] : line.items()) keys.insert(key);
  return keys;
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

TEST(Train, LearnsAndWritesTheFilesOfARunFolder) {
  const TinyRun run;
  const Outcome outcome = run.train({"train.steps=60", "train.eval_every=20"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "");

  auto names = names_in(run.run_folder());
  std::erase_if(names, [](auto& name) { return name.starts_with("events.out.tfevents."); });
  EXPECT_EQ(names, (std::set<std::string>{"run.toml", "log.txt", "metrics.jsonl", "checkpoints",
                                          "report.json", "report.html"}));
  EXPECT_EQ(names_in(run.run_folder()).size(), names.size() + 1) << "one event file";

  std::int64_t steps = 0;
  std::vector<double> losses, held_out;
  for (const Json& line : run.metrics()) {
    if (line.contains("eval_loss")) {
      EXPECT_EQ(keys_of(line), (std::set<std::string>{"step", "eval_loss", "eval_perplexity"}));
      held_out.push_back(line["eval_loss"]);
      continue;
    }
    EXPECT_EQ(keys_of(line),
              (std::set<std::string>{"step", "tokens", "loss", "grad_norm", "lr", "step_seconds",
                                     "tokens_per_second", "mfu", "data_wait_seconds"}));
    EXPECT_EQ(line["step"], ++steps);
    EXPECT_EQ(line["tokens"], steps * 128);
    losses.push_back(line["loss"]);
  }
  EXPECT_EQ(steps, 60);
  EXPECT_EQ(held_out.size(), 3u);
  EXPECT_GT(losses.front(), 3.5);  // ln 61 = 4.1: knows nothing
  EXPECT_LT(losses.back(), losses.front() - 1.0);
  EXPECT_LT(held_out.back(), held_out.front());
}

TEST(Train, WritesCheckpointsThatAreModelFolders) {
  const TinyRun run;
  ASSERT_EQ(run.train().status, 0);
  EXPECT_EQ(names_in(run.checkpoints()),
            (std::set<std::string>{"step-000004", "step-000008", "step-000010"}));
  const HfFolder weights(run.checkpoint(10));
  const ModelSpec spec = read_model_spec(run.checkpoint(10) / "config.json");
  EXPECT_EQ(spec.vocab, 61);
  EXPECT_TRUE(weights.contains("model.embed_tokens.weight"));

  const std::string data = (run.path() / "data.tokens").string();
  for (const fs::path& model : {run.checkpoint(10), run.run_folder()}) {
    const Outcome eval = run_heddle({"eval", model.string(), "--data", data, "--json"});
    EXPECT_EQ(eval.status, 0) << eval.err;
    EXPECT_GT(parse_json(eval.out, "eval")["tokens"].get<int>(), 5000);
    EXPECT_EQ(run_heddle({"inspect", model.string()}).status, 0);
    const fs::path converted = run.path() / ("converted-" + model.filename().string());
    const Outcome convert =
        run_heddle({"convert", model.string(), "--out", converted.string(), "--dtype", "bf16"});
    EXPECT_EQ(convert.status, 0) << convert.err;
    EXPECT_EQ(run_heddle({"eval", converted.string(), "--data", data}).status, 0);
  }
}

TEST(Train, StartsFromTextAndATokenizerAndSpeaks) {
  const TinyRun run;
  const auto at = [&](const char* name) { return (run.path() / name).string(); };
  ASSERT_EQ(run_heddle({"demo-text", "--out", at("demo.jsonl"), "--bytes", "20000"}).status, 0);
  ASSERT_EQ(run_heddle({"tokenizer", "train", at("demo.jsonl"), "--vocab", "300", "--special",
                        "<|endoftext|>", "--out", at("tokenizer.json"), "--threads", "1"})
                .status,
            0);
  const std::vector<std::string> settings = {
      "data.train=" + at("demo.jsonl"), "data.tokenizer=" + at("tokenizer.json"),
      "model.vocab_size=300",           "train.sample_every=5",
      "train.sample_prompt=The",        "train.sample_tokens=8"};
  const Outcome plan = run.train(settings, {"--dry-run"});
  EXPECT_EQ(plan.status, 0) << plan.err;
  EXPECT_FALSE(fs::exists(run.run_folder())) << "a dry run writes nothing";

  const Outcome outcome = run.train(settings);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("step 5 sample: The"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("step 10 sample: The"), std::string::npos) << outcome.err;
  auto silent = settings;
  silent.push_back("train.sample_every=0");
  const Outcome without = run.train(silent, {"--fresh"});
  ASSERT_EQ(without.status, 0) << without.err;
  EXPECT_EQ(without.err.find(" sample: "), std::string::npos) << without.err;
  for (const fs::path& model : {run.checkpoint(10), run.run_folder()}) {
    const Outcome generate =
        run_heddle({"generate", model.string(), "--prompt", "The", "--max-tokens", "8", "--json"});
    ASSERT_EQ(generate.status, 0) << generate.err;
    const Json json = parse_json(generate.out, "generate");
    EXPECT_LE(json["tokens"].size(), 8u);
    EXPECT_EQ(generate.out.find('\n'), generate.out.size() - 1) << "one line";
  }
}

TEST(Train, MixesSourcesByWeight) {
  const TinyRun run;
  run.use_two_sources();
  const Outcome outcome = run.train();
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const std::string mixed = run.numbers();

  const TinyRun single;
  ASSERT_EQ(single.train().status, 0);
  EXPECT_NE(mixed, single.numbers()) << "the second source was not used";
}

TEST(Train, DryRunWritesNothing) {
  const TinyRun run;
  const Outcome outcome = run.train({}, {"--dry-run"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("parameters"), std::string::npos) << outcome.err;
  EXPECT_FALSE(fs::exists(run.run_folder()));
}

}  // namespace
}  // namespace heddle
