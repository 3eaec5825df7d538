// Runs whose micro-batches skip and swap stages, by the program; and models that go through some of
// their layers.

#include <gtest/gtest.h>

#include "train/tiny_run.h"

namespace heddle {
namespace {

using Words = std::vector<std::string>;

/// A TinyRun of four layers and four micro-batches a step.
class RoutesRun : public TinyRun {
 public:
  RoutesRun() {
    Json config = parse_json(read_text_file(path() / "config.json"), "config.json");
    config["num_hidden_layers"] = 4;
    write("config.json", config.dump());
  }
  Outcome train_routes(const Words& more, const std::string& ranks = "3") const {
    Words settings = {"parallel.schedule=routes", "parallel.pp=" + ranks,
                      "train.tokens_per_step=256", "train.eval_every=4"};
    settings.insert(settings.end(), more.begin(), more.end());
    return train(settings, {"--ranks", ranks});
  }
  double last_loss() const {
    double loss = 0.0;
    for (const Json& line : metrics()) loss = line.value("loss", loss);
    return loss;
  }
};

TEST(RoutesRun, GoesOnAsIfItHadNotStopped) {
  for (const Words& routes : {Words{"parallel.skip=0.33"}, Words{"parallel.routes=swap"}}) {
    const RoutesRun whole, broken;
    Words settings = routes;
    settings.push_back("optim.schedule=constant");
    const Outcome once = whole.train_routes(settings);
    ASSERT_EQ(once.status, 0) << once.err;
    EXPECT_LT(whole.last_loss(), 4.0);  // it learns: log 61 is 4.11
    settings.push_back("train.steps=4");
    ASSERT_EQ(broken.train_routes(settings).status, 0);
    settings.pop_back();
    const Outcome resumed = broken.train_routes(settings);
    ASSERT_EQ(resumed.status, 0) << resumed.err;
    EXPECT_EQ(broken.numbers(), whole.numbers());
    expect_same_state(broken.checkpoint(10), whole.checkpoint(10));
  }
}

TEST(RoutesRun, AsksBeforeItGoesOnWithOtherRoutes) {
  const RoutesRun run;
  ASSERT_EQ(run.train_routes({"parallel.skip=0.33", "train.steps=4"}).status, 0);
  const Outcome other = run.train_routes({"train.steps=8"});
  EXPECT_NE(other.status, 0);
  EXPECT_NE(other.err.find("parallel.skip"), std::string::npos) << other.err;
}

TEST(RoutesRun, SaysWhatCannotBe) {
  const RoutesRun run;
  const auto refusal = [&](const Words& more, const std::string& ranks) {
    const Outcome outcome = run.train_routes(more, ranks);
    EXPECT_NE(outcome.status, 0);
    return outcome.err;
  };
  EXPECT_NE(refusal({"parallel.routes=swap"}, "4").find("no two pairs to swap"), std::string::npos);
  EXPECT_NE(refusal({"parallel.vocabulary=pipeline"}, "3")
                .find("schedule routes does not split the vocabulary over the pipeline"),
            std::string::npos);
  EXPECT_NE(refusal({"parallel.chunks=2"}, "2").find("schedule routes has one chunk per rank"),
            std::string::npos);
  EXPECT_NE(refusal({"parallel.schedule=1f1b", "parallel.skip=0.33"}, "3")
                .find("needs parallel.schedule = \"routes\""),
            std::string::npos);
}

TEST(Layers, OfEvaluationsCanBeChosen) {
  const RoutesRun run;
  ASSERT_EQ(run.train_routes({"parallel.skip=0.33"}).status, 0);
  const std::string model = run.run_folder().string(), data = (run.path() / "data.tokens").string();
  const auto eval = [&](const Words& more) {
    Words words = {"eval", model, "--data", data, "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return run_heddle(words);
  };
  const Outcome all = eval({}), named = eval({"--layers", "0-3"}), some = eval({"--layers", "0,3"});
  ASSERT_EQ(some.status, 0) << some.err;
  const Json whole = parse_json(all.out, "eval"), same = parse_json(named.out, "eval"),
             less = parse_json(some.out, "eval");
  EXPECT_FALSE(whole.contains("layers"));
  EXPECT_EQ(same.at("loss"), whole.at("loss"));
  EXPECT_EQ(same.at("perplexity_cost"), 0.0);
  EXPECT_EQ(less.at("layers"), Json({0, 3}));
  EXPECT_NE(less.at("loss"), whole.at("loss"));
  EXPECT_EQ(less.at("all_layers").at("loss"), whole.at("loss"));
  EXPECT_DOUBLE_EQ(
      less.at("perplexity_cost").get<double>(),
      less.at("perplexity").get<double>() / whole.at("perplexity").get<double>() - 1.0);
  for (const auto& [layers, why] : {std::pair{"0-4", "there is no layer 4 in a model of 4"},
                                    {"1,1", "layer 1 is named twice"},
                                    {"3-1", "names no layers"},
                                    {"a", "names no layers"}}) {
    const Outcome refused = eval({"--layers", layers});
    EXPECT_EQ(refused.status, 2);
    EXPECT_NE(refused.err.find(why), std::string::npos) << refused.err;
  }
}

TEST(Layers, OfTextCanBeChosen) {
  const RoutesRun run;
  const auto at = [&](const char* name) { return (run.path() / name).string(); };
  ASSERT_NO_FATAL_FAILURE(run.write_text());
  ASSERT_EQ(run.train({"data.train=" + at("demo.jsonl"), "data.tokenizer=" + at("tokenizer.json"),
                       "model.vocab_size=300", "model.init_std=0.3", "train.steps=2"})
                .status,
            0);
  const auto tokens = [&](const Words& more) {
    Words words = {"generate", run.run_folder().string(), "--prompt", "The",   "--max-tokens",
                   "8",        "--temperature",           "0",        "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = run_heddle(words);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return parse_json(outcome.out, "generate").at("tokens").dump();
  };
  const std::string all = tokens({}), exit = tokens({"--layers", "0-1"});
  EXPECT_EQ(tokens({"--layers", "0-3"}), all);
  EXPECT_NE(exit, all);
  // Two ranks of a pipeline leave out the same.
  EXPECT_EQ(tokens({"--layers", "0-1", "--ranks", "2", "--set", "parallel.pp=2"}), exit);
  EXPECT_EQ(tokens({"--layers", "1,3", "--ranks", "2", "--set", "parallel.pp=2"}),
            tokens({"--layers", "1,3"}));
  const Outcome refused = run_heddle({"generate", run.run_folder().string(), "--prompt", "The",
                                      "--layers", "1,0", "--ranks", "2", "--set", "parallel.pp=2"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_NE(refused.err.find("a pipeline goes through layers in ascending order"),
            std::string::npos)
      << refused.err;
}

}  // namespace
}  // namespace heddle
