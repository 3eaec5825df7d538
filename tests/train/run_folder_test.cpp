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
  EXPECT_EQ(names, (std::set<std::string>{"run.toml", "log.txt", "metrics.jsonl", "starts.jsonl",
                                          "checkpoints", "report.json", "report.html"}));
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
  ASSERT_NO_FATAL_FAILURE(run.write_text());
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
    EXPECT_TRUE(json.contains("stopped"));
  }
}

TEST(Train, CheckpointsSayTheDtypeOfTheirFiles) {
  const TinyRun run;
  Json config = parse_json(read_text_file(run.path() / "config.json"), "config.json");
  config["torch_dtype"] = "bfloat16";
  run.write("config.json", config.dump());
  const auto dtype = [&] {
    return parse_json(read_text_file(run.checkpoint(4) / "config.json"), "c")["torch_dtype"];
  };
  ASSERT_EQ(run.train({"train.steps=4"}).status, 0);
  EXPECT_EQ(HfFolder(run.checkpoint(4)).entry("model.norm.weight").dtype_name, "F32");
  EXPECT_EQ(dtype(), "float32");
  ASSERT_EQ(run.train({"train.steps=4", "checkpoint.dtype=bf16"}, {"--fresh"}).status, 0);
  EXPECT_EQ(HfFolder(run.checkpoint(4)).entry("model.norm.weight").dtype_name, "BF16");
  EXPECT_EQ(dtype(), "bfloat16");
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

TEST(Fresh, RemovesOnlyWhatHeddleWrote) {
  const TinyRun run;
  ASSERT_EQ(run.train({"observe.trace=true"}).status, 0);
  const std::vector<std::string> foreign = {
      "run/checkpoints/notes.txt", "run/checkpoints/best/model.safetensors", "run/trace/mine.txt",
      "run/events.out.tfevents.1700000000.host.123.0", "run/plots.png"};
  for (const std::string& name : foreign) {
    fs::create_directories((run.path() / name).parent_path());
    run.write(name, "mine");
  }
  fs::create_directories(run.checkpoints() / "step-000009.tmp-77");  // ours, of a crash
  const auto events = [&] {
    auto names = names_in(run.run_folder());
    std::erase_if(names, [](auto& name) { return !name.starts_with("events.out.tfevents."); });
    return names.size();
  };
  ASSERT_EQ(events(), 2U);
  const Outcome fresh = run.train({"train.steps=3"}, {"--fresh"});
  ASSERT_EQ(fresh.status, 0) << fresh.err;
  for (const std::string& name : foreign) {
    EXPECT_TRUE(fs::exists(run.path() / name)) << name;
  }
  EXPECT_EQ(names_in(run.checkpoints()),
            (std::set<std::string>{"best", "notes.txt", "step-000003"}));
  EXPECT_EQ(names_in(run.run_folder() / "trace"), std::set<std::string>{"mine.txt"});
  EXPECT_EQ(events(), 2U) << "the new run's and the foreign one";
  for (const char* kept : {"checkpoints keeps what heddle did not write: best, notes.txt",
                           "trace keeps what heddle did not write: mine.txt"}) {
    EXPECT_NE(fresh.err.find(kept), std::string::npos) << fresh.err;
  }
}

TEST(Fresh, RefusesAForeignFolderWithTheNameOfACheckpoint) {
  const TinyRun run;
  ASSERT_EQ(run.train().status, 0);
  const auto state = tensors_of(run.checkpoint(10));
  fs::create_directories(run.checkpoint(2));
  run.write("run/checkpoints/step-000002/precious.bin", "mine");
  const Outcome fresh = run.train({}, {"--fresh"});
  EXPECT_EQ(fresh.status, 2) << fresh.err;
  EXPECT_NE(fresh.err.find("step-000002 has the name of a checkpoint"), std::string::npos)
      << fresh.err;
  EXPECT_TRUE(tensors_of(run.checkpoint(10)) == state) << "nothing was removed before";
  const Outcome resumed =
      run.train({"train.steps=11", "optim.schedule=cosine"}, {"--accept-changes"});
  EXPECT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_TRUE(fs::exists(run.checkpoint(2) / "precious.bin")) << "retention leaves it alone";
}

TEST(RunFolder, WithTheRunFileItselfIsRefused) {
  const TinyRun run;
  const std::string text = read_text_file(run.path() / "run.toml");
  for (const std::vector<std::string>& flags : {std::vector<std::string>{}, {"--fresh"}}) {
    const Outcome outcome = run.train({"run.dir=" + run.path().string()}, flags);
    EXPECT_EQ(outcome.status, 2) << outcome.err;
    EXPECT_NE(outcome.err.find("run.toml that heddle did not write"), std::string::npos)
        << outcome.err;
    EXPECT_EQ(read_text_file(run.path() / "run.toml"), text);
  }
}

TEST(RunFolder, WithForeignFilesOfARunsNamesIsRefused) {
  const TinyRun run;
  fs::create_directories(run.run_folder());
  run.write("run/report.html", "mine");
  const Outcome outcome = run.train({}, {"--fresh"});
  EXPECT_EQ(outcome.status, 2) << outcome.err;
  EXPECT_NE(outcome.err.find("holds report.html, which a run would overwrite"), std::string::npos)
      << outcome.err;
  EXPECT_EQ(read_text_file(run.run_folder() / "report.html"), "mine");
}

TEST(RunFolder, IsContinuedFromItsOwnResolvedRunFile) {
  const TinyRun run;
  ASSERT_EQ(run.train().status, 0);
  const fs::path resolved = run.run_folder() / "run.toml";
  const auto goes_on = [&](const char* steps) {
    const Outcome outcome = run_heddle({"train", resolved.string(), "--set",
                                        std::string("train.steps=") + steps, "--accept-changes"});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_NE(outcome.err.find("resuming from"), std::string::npos) << outcome.err;
  };
  goes_on("11");
  // As versions before the mark wrote it.
  std::string text = read_text_file(resolved);
  ASSERT_TRUE(text.starts_with("# "));
  write_file_atomically(real_file_system(), resolved, text.substr(text.find('\n') + 1));
  goes_on("12");
}

}  // namespace
}  // namespace heddle
