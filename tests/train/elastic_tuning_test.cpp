// Ranks are lost while a part of a model is trained, or while a run may stop early.

#include "train/elastic_run.h"

namespace heddle {
namespace {

/// A trained model, of which a part is trained on.
class TunedModel {
 public:
  TunedModel() : base_(1, {"train.steps=2", "checkpoint.every=2", "optim.lr=0.01"}) {
    base_.train_in_one_world();
  }
  Settings with(Settings settings) const {
    settings.insert(settings.end(),
                    {"model.config=\"\"", fmt::format("model.path=\"{}\"", base_.last().string())});
    return settings;
  }

 private:
  ElasticRun base_;
};

class ElasticTuning : public ::testing::TestWithParam<MeshCase> {};

/// What is frozen comes from the model's folder again, the rest from a replica or a copy.
TEST_P(ElasticTuning, LosesARankAtAnyCallAndEndsWithTheSameWeights) {
  const TunedModel model;
  const Settings settings = model.with(GetParam().settings);
  ElasticRun undisturbed(4, settings);
  const auto quiet = undisturbed.train({}, true);
  ASSERT_EQ(quiet.failures, std::vector<std::string>());
  std::mt19937_64 random(13);
  for (int trial = 0; trial < 12; ++trial) {
    ElasticRun run(4, settings);
    const int victim = trial % 4;
    const std::int64_t all = quiet.calls[static_cast<std::size_t>(victim)];
    const std::int64_t fatal = any_call(quiet.calls, victim, random);
    SCOPED_TRACE(fmt::format("member {} at call {} of {}", victim, fatal, all));
    const auto seen = run.train({{victim, fatal}}, true, {}, random());
    EXPECT_EQ(seen.failures, std::vector<std::string>());
    expect_same_state(run.last(), undisturbed.last());
    run.expect_every_step_once();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, ElasticTuning,
    ::testing::Values(
        MeshCase{"adapters", {"parallel.dp=2", "parallel.pp=2", "lora.rank=2"}},
        MeshCase{"adapters_with_dropout",
                 {"parallel.dp=2", "parallel.tp=2", "lora.rank=2", "lora.dropout=0.2"}},
        MeshCase{"adapters_with_copies",
                 {"parallel.pp=4", "lora.rank=2", "recover.elastic=true", "recover.copies=1"}},
        MeshCase{"adapters_divided",
                 {"parallel.dp=4", "parallel.zero=3", "lora.rank=2", "recover.elastic=true",
                  "recover.copies=1"}},
        MeshCase{"frozen_stage_with_copies",
                 {"parallel.pp=4", "train.freeze=[\"*layers.1.*\"]", "recover.elastic=true",
                  "recover.copies=1"}},
        MeshCase{"frozen",
                 {"parallel.dp=2", "parallel.pp=2",
                  "train.freeze=[\"*layers.0.*\", \"*layers.3.mlp*\"]"}}),
    [](const auto& info) { return info.param.name; });

/// Nobody has the lost stage: what a checkpoint of adapters does not have is read where they began.
TEST(ElasticTuningRun, GoesBackToACheckpointOfAdapters) {
  const TunedModel model;
  const Settings settings = model.with({"parallel.pp=4", "lora.rank=2", "checkpoint.every=2"});
  ElasticRun undisturbed(4, settings), run(4, settings);
  const auto calls = undisturbed.train({}, true).calls;
  const auto seen = run.train({{1, calls[1] * 4 / 5}}, true);
  EXPECT_EQ(seen.failures, std::vector<std::string>());
  EXPECT_EQ(seen.epochs, 2);
  expect_same_state(run.last(), undisturbed.last());
}

/// The held-out loss grows at so high a rate. A loss of a rank changes neither when the run stops,
/// nor with which weights.
TEST(ElasticPatience, EndsAtTheSameStepWhateverIsLost) {
  const Settings settings = {
      "parallel.dp=2", "parallel.pp=2",    "train.steps=40",           "train.eval_every=1",
      "optim.lr=0.5",  "train.patience=3", "train.tokens_per_step=256"};
  ElasticRun undisturbed(4, settings);
  const auto quiet = undisturbed.train({}, true);
  ASSERT_EQ(quiet.failures, std::vector<std::string>());
  const std::int64_t last = quiet.outcomes.front().step;
  ASSERT_LT(last, 30);
  ASSERT_GT(last, 3);
  std::mt19937_64 random(17);
  for (int trial = 0; trial < 12; ++trial) {
    ElasticRun run(4, settings);
    const int victim = trial % 4;
    const std::int64_t all = quiet.calls[static_cast<std::size_t>(victim)];
    const std::int64_t fatal = any_call(quiet.calls, victim, random);
    SCOPED_TRACE(fmt::format("member {} at call {} of {}", victim, fatal, all));
    const auto seen = run.train({{victim, fatal}}, true, {}, random());
    EXPECT_EQ(seen.failures, std::vector<std::string>());
    for (const TrainOutcome& outcome : seen.outcomes) EXPECT_EQ(outcome.step, last);
    expect_same_state(run.files().checkpoint(last), undisturbed.files().checkpoint(last));
  }
}

}  // namespace
}  // namespace heddle
