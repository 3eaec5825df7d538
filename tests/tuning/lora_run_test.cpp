// Whole runs with [lora]: what they write, how they go on, and what other verbs make of it.

#include <gtest/gtest.h>

#include "checkpoint/adapter_folder.h"
#include "train/tiny_run.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

/// A trained small model, and a run file that trains adapters for it.
class AdapterRun {
 public:
  AdapterRun() {
    EXPECT_EQ(base_.train().status, 0);
    const std::string out = (path() / "base").string();
    EXPECT_EQ(run_heddle({"convert", base_.run_folder().string(), "--out", out}).status, 0);
    std::string text = read_text_file(path() / "run.toml");
    const std::string config = fmt::format("config = \"{}/config.json\"", path().string());
    text.replace(text.find(config), config.size(),
                 fmt::format("path = \"{}/base\"", path().string()));
    base_.write("run.toml", text + "[lora]\nrank = 4\nalpha = 8\n");
    base_.write_tokens("data.tokens", 5);
    fs::remove_all(base_.run_folder());
  }

  const fs::path& path() const { return base_.path(); }
  const TinyRun& run() const { return base_; }
  fs::path checkpoint(std::int64_t step) const { return base_.checkpoint(step); }
  Outcome train(const std::vector<std::string>& settings = {},
                const std::vector<std::string>& flags = {}) const {
    return base_.train(settings, flags);
  }
  double eval(const fs::path& model, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {
        "eval",   model.string(), "--data", (path() / "data.tokens").string(), "--seq", "32",
        "--json", "--threads",    "1"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run_heddle(words);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return parse_json(outcome.out, "eval")["loss"].get<double>();
  }

 private:
  TinyRun base_;
};

void expect_refusal(const Outcome& outcome, const std::string& words) {
  EXPECT_EQ(outcome.status, 2) << outcome.err;
  EXPECT_NE(outcome.err.find(words), std::string::npos) << outcome.err;
}

TEST(LoraRun, WritesAdaptersThatOtherVerbsUse) {
  const AdapterRun run;
  const Outcome trained = run.train();
  ASSERT_EQ(trained.status, 0) << trained.err;
  const fs::path adapter = run.checkpoint(10);
  EXPECT_FALSE(fs::exists(adapter / "model.safetensors"));
  const AdapterFolder folder(adapter);
  EXPECT_EQ(folder.config().rank, 4);
  EXPECT_EQ(folder.tensors().entries().size(), 2u * 7 * 2);
  const double base = run.eval(run.path() / "base"), tuned = run.eval(adapter);
  EXPECT_LT(tuned, base - 0.01);
  EXPECT_EQ(run.eval(run.path() / "base", {"--adapter", adapter.string()}), tuned);
  const fs::path merged = run.path() / "merged";
  const Outcome converted = run_heddle({"convert", adapter.string(), "--out", merged.string()});
  ASSERT_EQ(converted.status, 0) << converted.err;
  EXPECT_NEAR(run.eval(merged), tuned, 1e-5);
  EXPECT_EQ(run_heddle({"inspect", adapter.string()}).status, 0);
}

TEST(LoraRun, ResumesBitForBitAlsoOnAnotherMesh) {
  const AdapterRun whole, broken;
  ASSERT_EQ(whole.train().status, 0);
  const Outcome first = broken.train({"train.steps=10"}, {});
  ASSERT_EQ(first.status, 0) << first.err;
  fs::remove_all(broken.checkpoint(10));
  fs::remove_all(broken.checkpoint(8));
  const Outcome resumed = broken.train();
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_NE(resumed.err.find("resuming from"), std::string::npos) << resumed.err;
  expect_same_state(broken.checkpoint(10), whole.checkpoint(10));
  fs::remove_all(broken.checkpoint(10));
  fs::remove_all(broken.checkpoint(8));
  const Outcome divided = broken.train({"parallel.tp=2", "parallel.pp=2"}, {"--ranks", "4"});
  ASSERT_EQ(divided.status, 0) << divided.err;
  EXPECT_NEAR(broken.eval(broken.checkpoint(10)), whole.eval(whole.checkpoint(10)), 1e-4);
}

TEST(LoraRun, DropsInTrainingOnlyAndResumesBitForBit) {
  const AdapterRun plain, whole, broken;
  ASSERT_EQ(plain.train().status, 0);
  const std::string drops = "lora.dropout=0.3";
  ASSERT_EQ(whole.train({drops}).status, 0);
  EXPECT_EQ(AdapterFolder(whole.checkpoint(10)).config().dropout, 0.3);
  EXPECT_NE(whole.eval(whole.checkpoint(10)), plain.eval(plain.checkpoint(10)));
  const fs::path merged = whole.path() / "merged";
  ASSERT_EQ(run_heddle({"convert", whole.checkpoint(10).string(), "--out", merged.string()}).status,
            0);
  EXPECT_NEAR(whole.eval(merged), whole.eval(whole.checkpoint(10)), 1e-5) << "evaluation drops";
  ASSERT_EQ(broken.train({drops}).status, 0);
  fs::remove_all(broken.checkpoint(10));
  fs::remove_all(broken.checkpoint(8));
  const Outcome resumed = broken.train({drops});
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  expect_same_state(broken.checkpoint(10), whole.checkpoint(10));
}

TEST(LoraRun, GoesOnFromAdapters) {
  const AdapterRun run;
  ASSERT_EQ(run.train().status, 0);
  const fs::path first = run.path() / "first";
  fs::copy(run.checkpoint(10), first, fs::copy_options::recursive);
  fs::remove_all(run.run().run_folder());
  const std::string from = "lora.path=" + first.string();
  const Outcome again = run.train({from});
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_LT(run.eval(run.checkpoint(10)), run.eval(first));
  expect_refusal(run.train({from, "lora.rank=3"}, {"--fresh"}), "lora.rank = 3");
  expect_refusal(run.train({from, "lora.targets=[\"q_proj\"]"}, {"--fresh"}), "lora.targets");
}

TEST(LoraRun, AdaptersThatContradictThemselvesAreRefusedByEveryVerb) {
  const AdapterRun run;
  ASSERT_EQ(run.train().status, 0);
  const fs::path file = run.checkpoint(10) / "adapter_config.json", out = run.path() / "merged";
  const std::string whole = read_text_file(file), base = (run.path() / "base").string(),
                    data = (run.path() / "data.tokens").string();
  const auto expect_refused = [&](const std::string& from, const std::string& to,
                                  const std::string& words) {
    std::string text = whole;
    text.replace(text.find(from), from.size(), to);
    run.run().write(fs::relative(file, run.path()), text);
    const std::string adapter = run.checkpoint(10).string();
    for (const Outcome& outcome :
         {run_heddle({"convert", base, "--adapter", adapter, "--out", out.string()}),
          run_heddle({"eval", base, "--adapter", adapter, "--data", data})}) {
      EXPECT_EQ(outcome.status, 5) << to << "\n" << outcome.err;
      EXPECT_NE(outcome.err.find(words), std::string::npos) << outcome.err;
    }
    EXPECT_FALSE(fs::exists(out)) << to;
  };
  // Merged all the same, they would count twice as much.
  expect_refused("\"r\": 4", "\"r\": 2", "r = 2, but tensor");
  expect_refused("\"r\": 4", "\"r\": 4.5", "r = 4.5 is no rank");
  expect_refused("\"r\": 4", "\"r\": 1e300", "is no rank");
  expect_refused("\"LORA\"", "null", "adapters of kind null");
  expect_refused("\"use_rslora\": false", "\"use_rslora\": \"yes\"", "use_rslora = \"yes\"");
}

TEST(LoraRun, IsRefusedByNameWhereItHasNoMeaning) {
  const AdapterRun run;
  expect_refusal(run.train({"lora.rank=0"}), "lora.rank = 0 is out of range");
  expect_refusal(run.train({"lora.alpha=0"}), "lora.alpha = 0");
  expect_refusal(run.train({"lora.dropout=1"}), "lora.dropout = 1.0 is out of range");
  expect_refusal(run.train({"lora.dropout=-0.1"}), "lora.dropout = -0.1 is out of range");
  expect_refusal(run.train({"lora.targets=[\"query\"]"}), "lora.targets: \"query\"");
  expect_refusal(run.train({"train.freeze=[\"*\"]"}), "train.freeze and [lora]");
  expect_refusal(run.train({"optim.name=onebit-adam"}), "optim.name");
  expect_refusal(run.train({"recover.stages=\"checkfree\""}), "recover.stages");
  const TinyRun random;
  expect_refusal(random.train({"lora.rank=4"}), "set model.path");
  expect_refusal(random.train({"lora.alpha=4"}), "[lora] without lora.rank");
}

TEST(LoraRun, FoldersThatAreNoModelSayWhatToNameInstead) {
  const AdapterRun run;
  ASSERT_EQ(run.train().status, 0);
  const fs::path folder = run.run().run_folder();
  expect_refusal(run.train({"model.path=" + folder.string()}, {"--dry-run"}),
                 "it is a run folder: name one of its checkpoints");
  const Outcome adapters = run.train(
      {"model.path=" + run.checkpoint(10).string(), "run.dir=" + (run.path() / "other").string()});
  EXPECT_EQ(adapters.status, 5) << adapters.err;
  EXPECT_NE(adapters.err.find("it has adapters alone"), std::string::npos) << adapters.err;
}

TEST(LoraRun, OfAnotherBaseIsNotResumed) {
  const AdapterRun run;
  ASSERT_EQ(run.train().status, 0);
  fs::remove_all(run.checkpoint(10));
  const AdapterRun other;
  // Other weights under the same name: trained on other tokens.
  ASSERT_EQ(other.train({"lora.rank=4", "train.steps=4"}).status, 0);
  const fs::path merged = run.path() / "merged";
  ASSERT_EQ(run_heddle({"convert", other.checkpoint(4).string(), "--out", merged.string()}).status,
            0);
  fs::remove_all(run.path() / "base");
  fs::rename(merged, run.path() / "base");
  const Outcome resumed = run.train();
  EXPECT_NE(resumed.status, 0);
  EXPECT_NE(resumed.err.find("first weights"), std::string::npos) << resumed.err;
}

}  // namespace
}  // namespace heddle
