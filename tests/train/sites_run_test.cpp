// Whole runs of sites that train apart: what they save, export, resume and refuse.

#include <gtest/gtest.h>

#include <csignal>
#include <cstring>

#include "cli/refusals.h"
#include "support/source_dir.h"
#include "train/tiny_run.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

using Settings = std::vector<std::string>;

/// Fragments are sent at steps 4, 6, 8, 10, 12 and arrive a step later.
const Settings kSites = {"parallel.sites=2",  "outer.every=4", "outer.fragments=2",
                         "outer.delay=1",     "outer.mix=0.5", "outer.codec=e3m0",
                         "checkpoint.keep=9", "train.steps=12"};

Settings with(Settings settings, const Settings& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

Outcome train(const TinyRun& run, const Settings& settings, int ranks = 2,
              const Settings& flags = {}, const RunOptions& options = {}) {
  return run.train(settings, with({"--ranks", std::to_string(ranks)}, flags), options);
}

/// Behind this step the run was killed.
void forget_after(const TinyRun& run, std::int64_t step, std::int64_t steps = 12) {
  for (std::int64_t later = step + 1; later <= steps; ++later) {
    fs::remove_all(run.checkpoint(later));
  }
}

TEST(RunOfSites, ResumesBitForBitInsideAWindowAndWithAnExchangeUnderWay) {
  const TinyRun whole;
  const Settings settings = with(kSites, {"checkpoint.every=1", "checkpoint.keep=20"});
  const Outcome outcome = train(whole, settings);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  for (const std::int64_t step : {5, 6}) {
    const TinyRun again;
    fs::copy(whole.run_folder(), again.run_folder(), fs::copy_options::recursive);
    forget_after(again, step);
    const Outcome resumed = train(again, settings);
    ASSERT_EQ(resumed.status, 0) << resumed.err;
    expect_same_state(whole.checkpoint(12), again.checkpoint(12));
  }
  // Nor does it matter that checkpoints were written.
  const TinyRun quiet;
  ASSERT_EQ(train(quiet, with(kSites, {"checkpoint.every=0"})).status, 0);
  expect_same_state(whole.checkpoint(12), quiet.checkpoint(12));
}

TEST(RunOfSites, KeepWhatCompressedGradientsLostBySite) {
  const TinyRun whole;
  const Settings settings = with(kSites, {"compress.gradients=int4:32", "compress.min_bytes=0",
                                          "train.microbatch=1", "checkpoint.every=6"});
  const Outcome outcome = train(whole, settings, 4);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto files = tensors_of(whole.checkpoint(12));
  ASSERT_TRUE(files.contains("optimizer/site1.residual.0.safetensors"));
  EXPECT_NE(files.at("optimizer/site0.residual.0.safetensors"),
            files.at("optimizer/site1.residual.0.safetensors"));
  const TinyRun again;
  fs::copy(whole.run_folder(), again.run_folder(), fs::copy_options::recursive);
  forget_after(again, 6);
  const Outcome resumed = train(again, settings, 4);
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  expect_same_state(whole.checkpoint(12), again.checkpoint(12));
}

TEST(RunOfSites, SavesWhatIsOfASiteBySiteAndWhatIsCommonOnce) {
  const TinyRun run;
  ASSERT_EQ(train(run, kSites).status, 0);
  std::vector<std::string> names;
  for (const auto& [name, bytes] : tensors_of(run.checkpoint(12))) names.push_back(name);
  EXPECT_EQ(
      names,
      (Settings{"model.safetensors", "optimizer/outer_velocity.safetensors",
                "optimizer/site0.exp_avg.safetensors", "optimizer/site0.exp_avg_sq.safetensors",
                "optimizer/site0.weights.safetensors", "optimizer/site1.exp_avg.safetensors",
                "optimizer/site1.exp_avg_sq.safetensors", "optimizer/site1.weights.safetensors"}));
  const auto files = tensors_of(run.checkpoint(12));
  EXPECT_NE(files.at("optimizer/site0.weights.safetensors"),
            files.at("optimizer/site1.weights.safetensors"));
}

TEST(RunOfSites, EvaluatesAndExportsOuterWeights) {
  const TinyRun run;
  const Outcome outcome = train(run, kSites);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  double held_out = 0;
  for (const Json& line : run.metrics()) {
    if (line.contains("eval_loss")) held_out = line.at("eval_loss");
  }
  // A run of one site that trains nothing evaluates what the other exported.
  const TinyRun one;
  const Outcome again =
      one.train({"model.path=" + run.checkpoint(12).string(), "model.config=", "optim.lr=0",
                 "optim.min_lr=0", "optim.warmup_steps=0", "train.steps=1"});
  ASSERT_EQ(again.status, 0) << again.err;
  for (const Json& line : one.metrics()) {
    if (!line.contains("eval_loss")) continue;
    EXPECT_NEAR(line.at("eval_loss"), held_out, 1e-5);
  }
}

TEST(RunOfSites, SaysWhatItsSitesHaveInTheMeanAndWhoWaited) {
  const TinyRun run;
  const Outcome outcome = train(run, kSites);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("waited for other sites in 5 exchanges"), std::string::npos)
      << outcome.err;
  EXPECT_NE(outcome.err.find("| site 0: loss"), std::string::npos);
  int meetings = 0;
  for (const Json& line : run.metrics()) {
    if (!line.contains("sites_loss")) continue;
    ++meetings;
    const double first = line.at("site_losses").at(0), second = line.at("site_losses").at(1);
    EXPECT_NE(first, second);
    EXPECT_NEAR(line.at("sites_loss"), (first + second) / 2, 1e-12);
  }
  EXPECT_EQ(meetings, 4);  // in steps 5, 7, 9 and 11
}

TEST(RunOfSites, ComparesTheMeanOfItsStepsWithThePrediction) {
  const TinyRun run;
  const Outcome outcome = train(
      run, with(kSites, {"observe.system=" + source_dir() + "/configs/systems/h200-hgx-ndr.toml"}));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  for (const char* words : {"sites       compute ", " s in the mean, "}) {
    EXPECT_NE(outcome.err.find(words), std::string::npos) << words << "\n" << outcome.err;
  }
  const Json report = read_json_file(run.run_folder() / "report.json");
  // Of the last four steps: the first one makes its buffers, and the first window meets nobody.
  double sum = 0.0;
  for (const Json& line : run.metrics()) {
    if (line.contains("step_seconds") && line.at("step") > 8)
      sum += line.at("step_seconds").get<double>();
  }
  EXPECT_NEAR(report.at("step_seconds").at("measured_mean").get<double>(), sum / 4, 1e-6);
  EXPECT_GT(report.at("step_seconds").at("predicted").get<double>(), 0.0);
}

TEST(RunOfSites, GoesOnOnAnotherMeshInsideItsSites) {
  const TinyRun run;
  ASSERT_EQ(train(run, kSites).status, 0);
  const auto last_loss = [&] {
    double loss = 0;
    for (const Json& line : run.metrics()) {
      if (line.contains("eval_loss")) loss = line.at("eval_loss");
    }
    return loss;
  };
  const double before = last_loss();
  forget_after(run, 8);
  const Outcome other = train(run, with(kSites, {"parallel.tp=2"}), 4);
  ASSERT_EQ(other.status, 0) << other.err;
  EXPECT_NE(other.err.find("resuming from"), std::string::npos);
  EXPECT_NEAR(last_loss(), before, 1e-2);
}

TEST(RunOfSites, IsAnotherRunWithAnotherNumberOfSites) {
  const TinyRun run;
  ASSERT_EQ(train(run, kSites).status, 0);
  const Settings three = with(kSites, {"parallel.sites=3", "train.tokens_per_step=192",
                                       "train.microbatch=1", "train.steps=14"});
  const Outcome refused = train(run, three, 3);
  EXPECT_EQ(refused.status, 2) << refused.err;
  EXPECT_NE(refused.err.find("parallel.sites"), std::string::npos) << refused.err;
  const Outcome accepted = train(run, three, 3, {"--accept-changes"});
  ASSERT_EQ(accepted.status, 0) << accepted.err;
  EXPECT_NE(accepted.err.find("has nothing of site 2: that goes on with the weights and states of "
                              "site 0"),
            std::string::npos)
      << accepted.err;
}

/// Of a safetensors file: whether all its tensors are zero.
bool is_zero(const std::string& file) {
  std::uint64_t header = 0;
  std::memcpy(&header, file.data(), sizeof(header));
  const std::string_view data = std::string_view(file).substr(sizeof(header) + header);
  return data.find_first_not_of('\0') == std::string_view::npos;
}

TEST(RunOfSites, LeavesResidualsOfAnotherCodecBehind) {
  const TinyRun run;
  const Settings sparse = with(kSites, {"outer.codec=topk:8:256", "outer.mix=0"});
  ASSERT_EQ(train(run, sparse).status, 0);
  const auto residual = [&](std::int64_t step) {
    return tensors_of(run.checkpoint(step)).at("optimizer/site1.outer_residual.safetensors");
  };
  EXPECT_FALSE(is_zero(residual(12)));
  // Nothing is sent in step 13.
  const Settings changed = with(sparse, {"outer.codec=topk:4:256", "train.steps=13"});
  const Outcome refused = train(run, changed);
  EXPECT_EQ(refused.status, 2) << refused.err;
  EXPECT_NE(refused.err.find("outer.codec"), std::string::npos) << refused.err;
  const Outcome accepted = train(run, changed, 2, {"--accept-changes"});
  ASSERT_EQ(accepted.status, 0) << accepted.err;
  EXPECT_NE(accepted.err.find("outer.codec was \"topk:8:256\" and is \"topk:4:256\": its residuals "
                              "begin with zeros"),
            std::string::npos)
      << accepted.err;
  EXPECT_TRUE(is_zero(residual(13)));
}

TEST(RunOfSites, ThatIsStoppedSavesAtTheNextExchangeAndGoesOn) {
  const TinyRun run;
  const Settings longer =
      with(kSites, {"train.steps=400", "checkpoint.every=0", "train.eval_every=0"});
  const Outcome stopped = train(run, longer, 2, {}, {.signal = SIGTERM, .signal_at = "step 9/400"});
  EXPECT_EQ(stopped.status, 6) << stopped.err;
  const auto checkpoints = list_checkpoints(run.checkpoints());
  ASSERT_EQ(checkpoints.size(), 1u) << stopped.err;
  EXPECT_LT(checkpoints.front().step, 400);
}

TEST(RunOfSites, IsRefusedForAllThatIsWrongAtOnce) {
  const TinyRun run;
  expect_refusal(run.command({"parallel.sites=2"}, {"--ranks", "2"}), 2,
                 {"outer.every = 100", "end before sites have met"});
  expect_refusal(run.command({"parallel.sites=2", "outer.every=3", "outer.fragments=4",
                              "outer.delay=3", "outer.codec=int5", "train.tokens_per_step=96"},
                             {"--ranks", "3"}),
                 2,
                 {"outer.delay = 3 steps is not below outer.every = 3",
                  "outer.fragments = 4 are more than the 3 steps of outer.every",
                  "outer.codec: there is no codec \"int5\"", "parallel.sites 2",
                  "x parallel.sites 2); use 128", "but 3 are started"});
  expect_refusal(
      run.command({"parallel.sites=2", "outer.every=3", "outer.codec=topk", "outer.feedback=0"},
                  {"--ranks", "2"}),
      2, {"outer.codec = \"topk\" leaves out most", "use 0.95"});
  expect_refusal(
      run.command({"parallel.sites=2", "outer.every=3", "outer.codec=none", "outer.feedback=0.9"},
                  {"--ranks", "2"}),
      2, {"outer.feedback = 0.9", "\"none\" leaves out nothing"});
  expect_refusal(
      run.command({"parallel.sites=2", "outer.every=3", "outer.codec=lossless"}, {"--ranks", "2"}),
      2, {"outer.codec = \"lossless\"", "use \"none\""});
  expect_refusal(run.command({"parallel.sites=2", "outer.every=3", "outer.lost=go-on",
                              "run.timeout=0", "checkpoint.every=0"},
                             {"--ranks", "2"}),
                 2,
                 {"outer.lost = \"go-on\" with run.timeout = 0 would wait",
                  "outer.lost = \"go-on\" goes on from the newest checkpoint"});
}

TEST(RunOfOneSite, IsThePlainRunWhateverOuterSays) {
  const TinyRun plain, with_outer;
  ASSERT_EQ(plain.train({}).status, 0);
  ASSERT_EQ(with_outer.train({"outer.every=2", "outer.codec=e3m0"}).status, 0);
  expect_same_state(plain.checkpoint(10), with_outer.checkpoint(10));
  EXPECT_EQ(plain.numbers(), with_outer.numbers());
}

}  // namespace
}  // namespace heddle
