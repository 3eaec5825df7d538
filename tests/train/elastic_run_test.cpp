#include "train/elastic_run.h"

#include <gtest/gtest.h>

namespace heddle {
namespace {

TEST(ElasticRun, WithoutALossIsTheRunOfAWorld) {
  const Settings settings = {"parallel.dp=2", "parallel.pp=2", "train.eval_every=2"};
  ElasticRun elastic(4, settings);
  const auto seen = elastic.train({}, false);
  EXPECT_EQ(seen.failures, std::vector<std::string>());
  EXPECT_EQ(seen.epochs, 1);
  ElasticRun plain(4, settings);
  plain.train_in_one_world();
  expect_same_state(elastic.last(), plain.last());
  EXPECT_EQ(elastic.files().numbers(), plain.files().numbers());
}

/// Routers whose biases move against the load of every step.
const Json kExperts = {{"model_type", "heddle_moe"}, {"moe_intermediate_size", 8},
                       {"n_routed_experts", 4},      {"num_experts_per_tok", 2},
                       {"first_k_dense_replace", 1}, {"topk_method", "noaux_tc"}};

class ElasticMesh : public ::testing::TestWithParam<MeshCase> {};

/// A replica has what was lost: the run ends with the weights of one in which nothing was.
TEST_P(ElasticMesh, LosesARankAtAnyCallAndEndsWithTheSameWeights) {
  expect_losses_without_a_trace(4, GetParam(), trials());
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, ElasticMesh,
    ::testing::Values(
        MeshCase{"dp2_pp2", {"parallel.dp=2", "parallel.pp=2"}}, MeshCase{"dp4", {"parallel.dp=4"}},
        MeshCase{"dp2_tp2", {"parallel.dp=2", "parallel.tp=2"}},
        MeshCase{"muon", {"parallel.dp=2", "parallel.pp=2", "optim.name=\"muon\""}},
        MeshCase{"routes", {"parallel.dp=2", "parallel.pp=2", "parallel.schedule=\"routes\""}},
        MeshCase{
            "experts", {"parallel.dp=2", "parallel.pp=2", "model.router_bias_rate=0.01"}, kExperts},
        MeshCase{"vocabulary_over_the_pipeline",
                 {"parallel.dp=2", "parallel.pp=2", "parallel.vocabulary=\"pipeline\""},
                 {{"tie_word_embeddings", false}}},
        MeshCase{"experts_divided",
                 {"parallel.dp=4", "parallel.ep=2", "model.router_bias_rate=0.01"},
                 kExperts},
        MeshCase{"experts_divided_twice",
                 {"parallel.dp=2", "parallel.tp=2", "parallel.ep=2",
                  "parallel.ep_exchange=\"degree=2\""},
                 kExperts},
        MeshCase{"experts_balanced_by_steps",
                 {"parallel.dp=2", "parallel.tp=2", "model.router_balance=\"global\"",
                  "model.router_aux_loss=0.01"},
                 {{"model_type", "heddle_moe"},
                  {"moe_intermediate_size", 8},
                  {"n_routed_experts", 4},
                  {"num_experts_per_tok", 2},
                  {"first_k_dense_replace", 1}}}),
    [](const auto& info) { return info.param.name; });

const Settings kReplicas = {"parallel.dp=2", "parallel.pp=2", "train.eval_every=2"};

/// Not one of many, but each of the calls between two of a member's: those of a whole step, its
/// evaluation and its save.
TEST(ElasticRun, SurvivesALossAtEveryCallOfAStepItsEvaluationAndItsSave) {
  ElasticRun undisturbed(4, kReplicas);
  const auto all = undisturbed.train({}, true).calls;
  const std::int64_t victim = 1, calls = all[victim];
  for (std::int64_t fatal = calls / 2; fatal < calls / 2 + calls / 5; ++fatal) {
    ElasticRun run(4, kReplicas);
    SCOPED_TRACE(fmt::format("call {} of {}", fatal, calls));
    const auto seen = run.train({{victim, fatal}}, true, {}, static_cast<std::uint64_t>(fatal));
    EXPECT_EQ(seen.failures, std::vector<std::string>());
    expect_same_state(run.last(), undisturbed.last());
    run.expect_every_step_once();
  }
}

/// Members 0 and 3 are of different stages.
TEST(ElasticRun, SurvivesTwoLossesInARow) { expect_two_losses_without_a_trace(kReplicas, 10); }

/// Each newcomer is lost too, some steps later.
TEST(ElasticRun, SurvivesTenLossesOneAfterTheOther) {
  Settings settings = kReplicas;
  settings.insert(settings.end(), {"train.steps=60", "checkpoint.every=7"});
  ElasticRun undisturbed(4, settings), run(4, settings);
  undisturbed.train({}, true);
  std::mt19937_64 random(5);
  std::vector<std::int64_t> later;
  for (int i = 0; i < 9; ++i) later.push_back(150 + static_cast<std::int64_t>(random() % 80));
  const auto seen = run.train({{1, 100}}, true, later);
  EXPECT_EQ(seen.failures, std::vector<std::string>());
  EXPECT_EQ(seen.epochs, 11);
  expect_same_state(run.last(), undisturbed.last());
  run.expect_every_step_once();
}

/// Three ranks are one replica of two stages and a spare. Sums are made in another order then, of
/// the same samples.
TEST(ElasticRun, GoesOnWithFewerReplicasAndTheSameBatch) {
  ElasticRun undisturbed(4, kReplicas);
  undisturbed.train({}, false);
  ElasticRun run(4, kReplicas);
  const auto seen = run.train({{2, 90}}, false);
  EXPECT_EQ(seen.failures, std::vector<std::string>());
  EXPECT_EQ(seen.epochs, 2);
  EXPECT_EQ(seen.outcomes.size(), 3u);
  for (const TrainOutcome& outcome : seen.outcomes) {  // also the spare's, who may tell the user
    EXPECT_EQ(outcome.step, run.steps());
    EXPECT_TRUE(outcome.is_saved);
    EXPECT_EQ(outcome.checkpoint, run.last());
    EXPECT_EQ(outcome.loss, seen.outcomes.front().loss);
  }
  run.expect_every_step_once();
  expect_near_losses(run, undisturbed);
}

/// Eight micro-batches over three replicas: two of them add one in which nothing counts.
TEST(ElasticRun, FillsUnevenSharesWithBlankMicroBatches) {
  const Settings settings = {"parallel.dp=4"};
  ElasticRun undisturbed(4, settings);
  undisturbed.train({}, false);
  ElasticRun run(4, settings);
  const auto seen = run.train({{1, 40}}, false);
  EXPECT_EQ(seen.failures, std::vector<std::string>());
  run.expect_every_step_once();
  expect_near_losses(run, undisturbed);
}

/// Blank micro-batches would count for routers: with experts three ranks are two replicas and a
/// spare.
TEST(ElasticRun, WithExpertsGivesReplicasEvenShares) {
  const Settings settings = {"parallel.dp=4"};
  ElasticRun undisturbed(4, settings, kExperts);
  undisturbed.train({}, false);
  ElasticRun run(4, settings, kExperts);
  const auto seen = run.train({{1, 40}}, false);
  EXPECT_EQ(seen.failures, std::vector<std::string>());
  run.expect_every_step_once();
  expect_near_losses(run, undisturbed);
  const Json epochs =
      parse_json(read_text_file(run.files().run_folder() / "report.json"), "report")["epochs"];
  ASSERT_EQ(epochs.size(), 2u);
  EXPECT_EQ(epochs[1]["mesh"], "dp=2 tp=1 pp=1");
  EXPECT_EQ(epochs[1]["spares"], 1);
}

/// No replica has a stage of a pipeline, and none the states that ZeRO divides: the next rank keeps
/// a copy that follows every step.
class ElasticCopies : public ::testing::TestWithParam<MeshCase> {};

TEST_P(ElasticCopies, BringBackWhatOnlyTheLostRankHad) {
  Settings settings = GetParam().settings;
  settings.insert(settings.end(), {"recover.elastic=true", "recover.copies=1"});
  const Json& model = GetParam().model;
  ElasticRun undisturbed(4, settings, model), without(4, GetParam().settings, model);
  const auto calls = undisturbed.train({}, true).calls;
  without.train({}, true);
  expect_same_state(undisturbed.last(), without.last());  // copies change nothing
  std::mt19937_64 random(3);
  for (int trial = 0; trial < trials(); ++trial) {
    ElasticRun run(4, settings, model);
    const int victim = trial % 4;
    const std::int64_t all = calls[static_cast<std::size_t>(victim)];
    const std::int64_t fatal = any_call(calls, victim, random);
    SCOPED_TRACE(fmt::format("member {} at call {} of {}", victim, fatal, all));
    const auto seen = run.train({{victim, fatal}}, true, {}, random());
    EXPECT_EQ(seen.failures, std::vector<std::string>());
    expect_same_state(run.last(), undisturbed.last());
    run.expect_every_step_once();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, ElasticCopies,
    ::testing::Values(
        MeshCase{"pp4", {"parallel.pp=4"}},
        MeshCase{"pp4_muon", {"parallel.pp=4", "optim.name=\"muon\""}},
        MeshCase{"pp4_routes",
                 {"parallel.pp=4", "parallel.schedule=\"routes\"", "parallel.skip=0.33"}},
        MeshCase{"pp4_experts", {"parallel.pp=4", "model.router_bias_rate=0.01"}, kExperts},
        MeshCase{"dp4_ep4", {"parallel.dp=4", "parallel.ep=4"}, kExperts},
        MeshCase{"dp4_ep2_etp2", {"parallel.dp=4", "parallel.ep=2", "parallel.etp=2"}, kExperts},
        MeshCase{"dp4_ep2_zero1", {"parallel.dp=4", "parallel.ep=2", "parallel.zero=1"}, kExperts},
        MeshCase{"dp4_zero1", {"parallel.dp=4", "parallel.zero=1"}},
        MeshCase{"dp2_pp2_zero2", {"parallel.dp=2", "parallel.pp=2", "parallel.zero=2"}},
        MeshCase{"dp2_tp2_zero3", {"parallel.dp=2", "parallel.tp=2", "parallel.zero=3"}}),
    [](const auto& info) { return info.param.name; });

TEST(ElasticRun, SaysWhereStateCameFromAndWhatThatCost) {
  const Settings settings = {"parallel.pp=4", "recover.elastic=true", "recover.copies=1"};
  ElasticRun run(4, settings);
  const auto seen = run.train({{2, 150}}, true);
  EXPECT_EQ(seen.failures, std::vector<std::string>());
  const Json epochs = epochs_of(run);
  ASSERT_EQ(epochs.size(), 2u);
  EXPECT_EQ(epochs[0]["cause"], "");
  EXPECT_EQ(epochs[0]["members"], 4);
  EXPECT_EQ(epochs[0]["mesh"], "dp=1 tp=1 pp=4");
  EXPECT_EQ(epochs[1]["cause"], "member 3 is gone");
  const std::string source = epochs[1]["source"];
  EXPECT_EQ(source.find("rank 2 is lost: stage 2 from the copy on rank 3; exact"), 0u) << source;
  EXPECT_GT(epochs[1]["seconds"]["restore"].get<double>(), 0.0);
  EXPECT_GT(epochs[1]["seconds"]["redo"].get<double>(), 0.0);
  const std::string html = read_text_file(run.files().run_folder() / "report.html");
  EXPECT_NE(html.find("id=\"members\""), std::string::npos);
}

/// What copies send is planned, and counted where it is sent.
TEST(ElasticRun, SendsTheBytesOfCopiesThatWerePredicted) {
  ElasticRun run(4, {"parallel.pp=4", "recover.elastic=true", "recover.copies=1"});
  run.train({}, false);
  const Json report =
      parse_json(read_text_file(run.files().run_folder() / "report.json"), "report");
  for (const auto& [axis, operations] : report.at("communication").items()) {
    for (const auto& [operation, row] : operations.items()) {
      EXPECT_EQ(row.at("predicted"), row.at("counted")) << axis << " " << operation;
    }
  }
  // The first stage sends activations of 8 micro-batches a step, and its gradients.
  const Json sent = report.at("communication").at("pp").at("send").at("counted");
  EXPECT_GT(sent.at("calls").get<int>(), 8 * static_cast<int>(run.steps()));
}

/// Whatever a lost stage is doing: it is made of its partner, and embedding and head, which are
/// kept twice, come back as they were.
TEST(ElasticRun, MakesStagesAnewThatAreLostAtAnyCall) {
  const Settings settings = {"parallel.pp=5", "parallel.schedule=\"routes\"",
                             "parallel.routes=\"swap\"", "recover.elastic=true",
                             "recover.stages=\"checkfree+\""};
  ElasticRun undisturbed(5, settings);
  const auto calls = undisturbed.train({}, true).calls;
  std::mt19937_64 random(9);
  for (int trial = 0; trial < 10; ++trial) {
    ElasticRun run(5, settings);
    const int victim = trial % 5;
    const std::int64_t all = calls[static_cast<std::size_t>(victim)];
    const std::int64_t fatal = any_call(calls, victim, random);
    // In every other trial who comes is lost too, while it is given its state or soon after.
    std::vector<std::int64_t> later;
    if (trial % 2 == 1) later.push_back(1 + static_cast<std::int64_t>(random() % 60));
    SCOPED_TRACE(fmt::format("member {} at call {} of {}, the next at {}", victim, fatal, all,
                             later.empty() ? 0 : later.front()));
    const auto seen = run.train({{victim, fatal}}, true, later, random());
    EXPECT_EQ(seen.failures, std::vector<std::string>());
    if (victim == 0) expect_same_state(run.last(), undisturbed.last());
    run.expect_every_step_once();
  }
}

/// Whatever they are doing, the second perhaps what follows from the loss of the first: the others
/// go on without their blocks.
TEST(ElasticRun, LeavesStagesOutThatAreLostAtAnyCall) {
  const Settings settings = {"parallel.pp=6", "parallel.schedule=\"routes\"",
                             "recover.elastic=true", "recover.stages=\"skip\""};
  const Json five = {{"num_hidden_layers", 5}};
  ElasticRun undisturbed(6, settings, five);
  const auto calls = undisturbed.train({}, false).calls;
  std::mt19937_64 random(13);
  for (int trial = 0; trial < 10; ++trial) {
    ElasticRun run(6, settings, five);
    const auto fatal = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(calls[2]));
    const auto later = fatal + static_cast<std::int64_t>(random() % 60);
    SCOPED_TRACE(fmt::format("at calls {} and {} of {}", fatal + 1, later + 1, calls[2]));
    const auto seen = run.train({{2, fatal + 1}, {4, later + 1}}, false, {}, random());
    EXPECT_EQ(seen.failures, std::vector<std::string>());
    EXPECT_GE(seen.outcomes.size(), 4u);
    run.expect_every_step_once();
  }
}

/// Without a replica everybody goes back to the checkpoint, and makes the steps behind it again.
TEST(ElasticRun, GoesBackToTheCheckpointForWhatNobodyHas) {
  const Settings settings = {"parallel.pp=4", "train.steps=30", "checkpoint.every=2"};
  ElasticRun undisturbed(4, settings);
  const auto calls = undisturbed.train({}, true).calls;
  ElasticRun run(4, settings);
  const auto seen = run.train({{2, calls[2] * 3 / 4}}, true);
  EXPECT_EQ(seen.failures, std::vector<std::string>());
  EXPECT_EQ(seen.epochs, 2);
  expect_same_state(run.last(), undisturbed.last());
  run.expect_every_step_once();
}

TEST(ElasticRun, CutsThePipelineAgainForThreeRanks) {
  const Settings settings = {"parallel.pp=4", "train.steps=30", "checkpoint.every=2"};
  ElasticRun undisturbed(4, settings);
  const auto calls = undisturbed.train({}, true).calls;
  ElasticRun run(4, settings);
  const auto seen = run.train({{2, calls[2] * 3 / 4}}, false);
  EXPECT_EQ(seen.failures, std::vector<std::string>());
  run.expect_every_step_once();
  expect_near_losses(run, undisturbed);
}

/// Before there is one, the run ends with a line that says so.
TEST(ElasticRun, EndsWhereNobodyHasWhatWasLostAndThereIsNoCheckpoint) {
  const Settings settings = {"parallel.pp=4", "checkpoint.every=0"};
  ElasticRun undisturbed(4, settings);
  const auto calls = undisturbed.train({}, true).calls;
  ElasticRun run(4, settings);
  const auto seen = run.train({{2, calls[2] * 3 / 4}}, true);
  ASSERT_EQ(seen.failures.size(), 4u);
  for (const std::string& failure : seen.failures) {
    EXPECT_NE(failure.find("rank 2 is lost: stage 2 has no replica and no copy left"),
              std::string::npos)
        << failure;
    EXPECT_NE(failure.find("there is no checkpoint"), std::string::npos) << failure;
  }
}

/// A rank that comes is let in behind a step and given the state.
TEST(ElasticRun, LetsNewcomersInBetweenSteps) {
  const Settings settings = {"parallel.dp=2", "train.steps=40"};
  ElasticRun undisturbed(2, settings);
  undisturbed.train({}, false);
  ElasticRun run(2, settings);
  const auto seen = run.train({}, false, {}, 1, 2);
  EXPECT_EQ(seen.failures, std::vector<std::string>());
  EXPECT_GE(seen.epochs, 2);
  EXPECT_EQ(seen.outcomes.size(), 4u);
  run.expect_every_step_once();
  expect_near_losses(run, undisturbed);
}

/// Exchanges over etp are then made by the thread of those over ep.
TEST(ElasticRun, TakesStepsAgainWhoseExpertsExchangeInTurns) {
  const Settings settings = {"parallel.dp=4", "parallel.ep=2", "parallel.etp=2",
                             "parallel.ep_exchange=\"degree=2 networks=1\""};
  ElasticRun undisturbed(4, settings, kExperts);
  const auto calls = undisturbed.train({}, false).calls;
  std::mt19937_64 random(23);
  for (int trial = 0; trial < trials(); ++trial) {
    ElasticRun run(4, settings, kExperts);
    const int member = trial % 4;
    const auto all = static_cast<std::uint64_t>(calls[static_cast<std::size_t>(member)]);
    const auto alarm = static_cast<std::int64_t>(random() % all) + 1;
    SCOPED_TRACE(fmt::format("member {} at call {} of {}", member, alarm, all));
    const auto seen = run.train({{member, alarm, true}}, false, {}, random());
    EXPECT_EQ(seen.failures, std::vector<std::string>());
    expect_same_state(run.last(), undisturbed.last());
  }
}

/// What cannot be taken again or given to others is refused by name.
TEST(ElasticRun, RefusesWhatCannotBeDoneAgain) {
  ElasticRun run(2, {"parallel.dp=2", "parallel.ep=2", "compress.gradients=\"int8\""}, kExperts);
  const auto seen = run.train({}, false);
  ASSERT_EQ(seen.failures.size(), 2u);
  EXPECT_NE(
      seen.failures.front().find("parallel.ep = 2 and compress.gradients with error feedback"),
      std::string::npos)
      << seen.failures.front();
}

/// Nobody has the experts of a lost rank but the checkpoint; with fewer ranks they are divided over
/// fewer.
TEST(ElasticRun, DividesExpertsOverFewerRanks) {
  const Settings settings = {"parallel.dp=4", "parallel.ep=4", "train.steps=30",
                             "checkpoint.every=2"};
  ElasticRun undisturbed(4, settings, kExperts);
  const auto calls = undisturbed.train({}, true).calls;
  ElasticRun run(4, settings, kExperts);
  const auto seen = run.train({{2, calls[2] / 2}}, false);
  EXPECT_EQ(seen.failures, std::vector<std::string>());
  run.expect_every_step_once();
  expect_near_losses(run, undisturbed);
  const Json epochs = epochs_of(run);
  ASSERT_EQ(epochs.size(), 2u);
  EXPECT_EQ(epochs[1]["mesh"], "dp=2 tp=1 pp=1 ep=2");
  const std::string source = epochs[1]["source"];
  EXPECT_NE(source.find("part 2 of the experts of stage 0 has no replica and no copy left"),
            std::string::npos)
      << source;
}

/// Updates of divided matrices exchange them, when ranks may be lost.
TEST(ElasticRun, RefusesMuonWhereMatricesAreDivided) {
  for (const auto& [setting, name] :
       {std::pair{"parallel.zero=1", "parallel.zero = 1"}, {"parallel.tp=2", "parallel.tp = 2"}}) {
    ElasticRun run(2, {"optim.name=\"muon\"", setting});
    const auto seen = run.train({}, false);
    ASSERT_EQ(seen.failures.size(), 2u) << setting;
    EXPECT_NE(seen.failures.front().find(name), std::string::npos) << seen.failures.front();
  }
}

}  // namespace
}  // namespace heddle
