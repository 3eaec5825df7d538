#include "train/resume_check.h"

#include <gtest/gtest.h>

#include <set>

#include "base/json.h"
#include "checkpoint/catalog.h"
#include "config/load.h"
#include "train/tiny_run.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

void expect_mentions(const Outcome& outcome, const std::vector<std::string>& texts) {
  for (const std::string& text : texts) {
    EXPECT_NE(outcome.err.find(text), std::string::npos) << "no \"" << text << "\" in\n"
                                                         << outcome.err;
  }
}

/// The message with which a run of `then` that stands at `step` refuses to go on as `now` says; ""
/// when it goes on.
std::string refusal(const std::vector<std::string>& then, const std::vector<std::string>& now,
                    std::int64_t step, bool accepted = false) {
  const auto load = [](std::vector<std::string> settings) {
    settings.insert(settings.begin(), {"train.tokens_per_step=4096", "train.steps=100"});
    return config::parse_settings(settings);
  };
  const auto identity = [](const config::RunConfig& config) {
    return identity_of_start(config, ModelSpec{}, RunTokenizer{}, "1.2.3");
  };
  Manifest manifest;
  manifest.step = step;
  manifest.trainer =
      std::make_shared<const Json>(Json{{"identity", identity(load(then)).to_json()}});
  try {
    check_resumable("step", manifest, identity(load(now)), load(now), accepted);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    return error.what();
  }
  return "";
}

TEST(ResumeCheck, ALongerRunIsAChangeOnlyWhereItsPastWouldHaveBeenAnother) {
  const std::string longer = "train.steps=200";
  const auto refuses = [&](std::vector<std::string> schedule, std::int64_t step) {
    const auto then = schedule;
    schedule.push_back(longer);
    const bool is_refused = !refusal(then, schedule, step).empty();
    return is_refused;
  };
  EXPECT_TRUE(refuses({"optim.schedule=cosine"}, 50));
  EXPECT_TRUE(refuses({"optim.schedule=linear"}, 50));
  EXPECT_FALSE(refuses({"optim.schedule=cosine", "optim.warmup_steps=60"}, 50)) << "warming up";
  EXPECT_FALSE(refuses({"optim.schedule=constant"}, 50));
  EXPECT_FALSE(refuses({"optim.schedule=constant"}, 100));
  const std::vector<std::string> wsd = {"optim.schedule=wsd", "optim.decay_steps=20"};
  EXPECT_FALSE(refuses(wsd, 50)) << "in the stable part";
  EXPECT_FALSE(refuses(wsd, 80)) << "before the first step of the decay";
  EXPECT_TRUE(refuses(wsd, 81)) << "in the decay";
  EXPECT_TRUE(refuses(wsd, 100)) << "finished";
}

TEST(ResumeCheck, SaysWhatTheLearningRateDoes) {
  const std::string message =
      refusal({"optim.schedule=linear", "optim.lr=1"},
              {"optim.schedule=linear", "optim.lr=1", "train.steps=200"}, 49);
  EXPECT_NE(message.find("the learning rate of step 50 goes from 0.5 to 0.75"), std::string::npos)
      << message;
}

TEST(ResumeCheck, ChangesThatAreAcceptedGoOn) {
  EXPECT_NE(refusal({}, {"optim.lr=1", "data.seed=3"}, 50), "");
  EXPECT_EQ(refusal({}, {"optim.lr=1", "data.seed=3"}, 50, true), "");
}

TEST(ResumeCheck, WhatDoesNotChangeTheRunIsNotMentioned) {
  EXPECT_EQ(refusal({},
                    {"parallel.dp=2", "parallel.zero=3", "train.microbatch=2", "run.threads=3",
                     "checkpoint.every=7", "train.eval_every=3", "run.dir=elsewhere",
                     "train.recompute=block", "observe.trace=true"},
                    50),
            "");
}

TEST(Resume, RefusesAnotherModelByName) {
  const TinyRun run;
  ASSERT_EQ(run.train().status, 0);
  const auto state = tensors_of(run.checkpoint(10));
  const std::string run_file = read_text_file(run.run_folder() / "run.toml");
  Json model = parse_json(read_text_file(run.path() / "config.json"), "config.json");
  model["num_hidden_layers"] = 1;
  model["rope_theta"] = 500000.0;
  run.write("config.json", model.dump());
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{}, {"--accept-changes"}, {"--ranks", "2"}}) {
    const Outcome outcome = run.train({"train.steps=12"}, flags);
    EXPECT_EQ(outcome.status, 2) << outcome.err;
    expect_mentions(outcome, {"step-000010", "model layers", "model rope_theta", "10000", "500000",
                              "--fresh", "run.dir"});
    const auto at = outcome.err.find("error: ");
    EXPECT_EQ(outcome.err.find("error: ", at + 1), std::string::npos) << "said once";
  }
  EXPECT_TRUE(tensors_of(run.checkpoint(10)) == state) << "the old run is untouched";
  EXPECT_EQ(read_text_file(run.run_folder() / "run.toml"), run_file);
}

TEST(Resume, ShowsWhatChangedAndGoesOnWhenThatIsAccepted) {
  const TinyRun run;
  ASSERT_EQ(run.train().status, 0);
  run.write_tokens("data.tokens", 7);
  const std::vector<std::string> other = {"train.steps=12",   "optim.lr=1e-3",
                                          "run.seed=1",       "train.tokens_per_step=192",
                                          "data.holdout=0.2", "optim.beta2=0.99"};
  const Outcome refused = run.train(other);
  EXPECT_EQ(refused.status, 2) << refused.err;
  expect_mentions(refused, {"then", "now", "train.steps", "optim.lr", "model.seed", "data.seed",
                            "train.tokens_per_step", "data.holdout", "optim.beta2", "data.train",
                            "the learning rate of step 11 goes from 0 to", "--accept-changes"});
  const Outcome accepted = run.train(other, {"--accept-changes"});
  EXPECT_EQ(accepted.status, 0) << accepted.err;
  expect_mentions(accepted, {"optim.beta2", "0.95", "0.99", "step 12/12"});
  const Outcome again = run.train(other);
  EXPECT_EQ(again.status, 0) << "the new settings are the run's now\n" << again.err;
  expect_mentions(again, {"finished", "--accept-changes"});
}

TEST(Resume, RefusesTheStatesOfAnotherOptimizerAndSaysTheWayOut) {
  const TinyRun run;
  ASSERT_EQ(run.train({"optim.name=muon"}).status, 0);
  const std::vector<std::string> sgd = {"optim.name=sgd", "optim.momentum=0.9", "train.steps=12"};
  const Outcome refused = run.train(sgd);
  EXPECT_EQ(refused.status, 2) << refused.err;
  expect_mentions(refused, {"step-000010", "optim.name", "muon", "sgd", "left behind, and those of",
                            "start at zero", "--accept-changes", "--fresh"});
  const Outcome accepted = run.train(sgd, {"--accept-changes", "--ranks", "2"});
  EXPECT_EQ(accepted.status, 0) << accepted.err;
  expect_mentions(accepted, {"optim.name", "start at zero", "step 12/12"});
  std::set<std::string> states;
  for (const auto& entry : fs::directory_iterator(run.checkpoint(12) / "optimizer")) {
    states.insert(entry.path().stem().string());
  }
  EXPECT_EQ(states, std::set<std::string>{"momentum_buffer"});
}

TEST(Resume, MomentumThatWasOffStartsAtZeroOnceThatIsAccepted) {
  const TinyRun run;
  ASSERT_EQ(run.train({"optim.name=sgd"}).status, 0);
  EXPECT_FALSE(fs::exists(run.checkpoint(10) / "optimizer" / "momentum_buffer.safetensors"));
  const std::vector<std::string> on = {"optim.name=sgd", "optim.momentum=0.9", "train.steps=12"};
  expect_mentions(run.train(on), {"optim.momentum", "--accept-changes"});
  const Outcome accepted = run.train(on, {"--accept-changes"});
  EXPECT_EQ(accepted.status, 0) << accepted.err;
  EXPECT_TRUE(fs::exists(run.checkpoint(12) / "optimizer" / "momentum_buffer.safetensors"));
}

TEST(Resume, GoesOnWithoutAWordWhereTheRunStaysTheSame) {
  const TinyRun run;
  const std::vector<std::string> constant = {"optim.schedule=constant"};
  ASSERT_EQ(run.train(constant).status, 0);
  fs::rename(run.run_folder(), run.path() / "moved");
  fs::rename(run.path() / "data.tokens", run.path() / "renamed.tokens");
  const Outcome resumed =
      run.train({"optim.schedule=constant", "train.steps=12", "parallel.zero=2",
                 "train.microbatch=1", "checkpoint.every=3", "observe.console_every=2",
                 "run.dir=" + (run.path() / "moved").string(),
                 "data.train=" + (run.path() / "renamed.tokens").string()},
                {"--ranks", "2"});
  EXPECT_EQ(resumed.status, 0) << resumed.err;
  expect_mentions(resumed, {"resuming from", "train.steps was 10 and is 12", "step 12/12"});
  EXPECT_EQ(resumed.err.find("warning"), std::string::npos) << resumed.err;
}

/// Makes the checkpoint one of a version that did not record what its run was.
void forget_identity(const fs::path& checkpoint) {
  Json manifest = parse_json(read_text_file(checkpoint / kManifestFile), "manifest");
  manifest["trainer"].erase("identity");
  const std::string text = manifest.dump(2) + "\n";
  write_file_atomically(real_file_system(), checkpoint / kManifestFile, text);
  write_file_atomically(real_file_system(), checkpoint / kCommitFile, commit_text(text));
}

TEST(Resume, OfAnOlderCheckpointSaysThatNothingCouldBeCompared) {
  const TinyRun run;
  ASSERT_EQ(run.train().status, 0);
  forget_identity(run.checkpoint(10));
  Json model = parse_json(read_text_file(run.path() / "config.json"), "config.json");
  model["num_hidden_layers"] = 1;
  run.write("fewer.json", model.dump());
  const Outcome fewer =
      run.train({"train.steps=12", "model.config=" + (run.path() / "fewer.json").string()});
  EXPECT_EQ(fewer.status, 5) << fewer.err;
  expect_mentions(fewer, {"model.layers.1.", "which the model has not", "--fresh"});

  const Outcome sgd = run.train({"train.steps=12", "optim.name=sgd", "optim.momentum=0.9"});
  EXPECT_EQ(sgd.status, 2) << sgd.err;
  expect_mentions(sgd, {"has no momentum_buffer", "another optimizer", "--accept-changes"});

  const Outcome resumed = run.train({"train.steps=12"});
  EXPECT_EQ(resumed.status, 0) << resumed.err;
  expect_mentions(resumed, {"nothing could be compared", "step 12/12"});
}

}  // namespace
}  // namespace heddle
