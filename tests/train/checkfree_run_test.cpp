#include "train/checkfree_run.h"

namespace heddle {
namespace {

const Settings kInOrder = {"parallel.pp=5", "parallel.schedule=\"routes\"",
                           "recover.stages=\"checkfree\""};
const Settings kSwapped = {"parallel.pp=5", "parallel.schedule=\"routes\"",
                           "parallel.routes=\"swap\"", "recover.stages=\"checkfree+\""};

TEST(CheckFreeRun, ALostStageIsTheMeanOfItsNeighboursBitForBit) {
  CheckFreeRun run(with_idle_end(kInOrder));
  const auto seen = run.train({{CheckFreeRun::kSteps - 1, {2}}});
  EXPECT_EQ(seen.failures, std::vector<std::string>());
  EXPECT_EQ(seen.epochs, 2);
  run.expect_every_step_once();
  const std::int64_t end = CheckFreeRun::kSteps;
  const auto names = run.names();
  const float a = run.norm(end - 1, of_block(names, 0)), b = run.norm(end - 1, of_block(names, 2));
  EXPECT_NE(a, b);
  for (const std::string& name : of_block(names, 1)) {
    expect_mean(run.tensor(end, name), run.tensor(end, moved(name, 1, 0)), a,
                run.tensor(end, moved(name, 1, 2)), b, name);
  }
  const std::string source = run.epochs()[1]["source"];
  EXPECT_NE(source.find("rank 2 is lost: stage 2 as the mean of stages 1 and 3, weighted"),
            std::string::npos)
      << source;
  EXPECT_NE(source.find("learning rates are 1.1 times the schedule's"), std::string::npos);
  EXPECT_NE(run.page().find("as the mean of stages 1 and 3"), std::string::npos);
  EXPECT_EQ(run.trainer(end)["made_anew"], (std::map<int, std::int64_t>{{1, end - 1}}));
}

/// Embedding and head are not part of the mean, but their gradients are of their stages' norms.
/// ZeRO divides nothing here.
TEST(CheckFreeRun, AStageOfAPlainPipelineIsTheMeanToo) {
  CheckFreeRun run(
      with_idle_end({"parallel.pp=3", "parallel.zero=1", "recover.stages=\"checkfree\""}), 3, 6);
  const auto seen = run.train({{CheckFreeRun::kSteps - 1, {1}}});
  EXPECT_EQ(seen.failures, std::vector<std::string>());
  const std::int64_t end = CheckFreeRun::kSteps;
  const auto names = run.names();
  std::vector<std::string> first = {"model.embed_tokens.weight"},
                           third = {"model.norm.weight", "lm_head.weight"};
  for (const int block : {0, 1})
    std::ranges::copy(of_block(names, block), std::back_inserter(first));
  for (const int block : {4, 5})
    std::ranges::copy(of_block(names, block), std::back_inserter(third));
  const float a = run.norm(end - 1, first), b = run.norm(end - 1, third);
  for (const int block : {2, 3}) {
    for (const std::string& name : of_block(names, block)) {
      expect_mean(run.tensor(end, name), run.tensor(end, moved(name, block, block - 2)), a,
                  run.tensor(end, moved(name, block, block + 2)), b, name);
    }
  }
}

/// Moments begin at zero, their count of steps at one, and the rate is 1.1 times the schedule's:
/// Adam's first step is as long as the rate.
TEST(CheckFreeRun, ARecoveredStageLearnsFasterFromItsFirstStepOn) {
  Settings settings = kInOrder;
  settings.insert(settings.end(), {"optim.schedule=\"constant\"", "optim.eps=1e-12"});
  CheckFreeRun run(settings);
  const std::int64_t end = CheckFreeRun::kSteps;
  const auto seen = run.train({{end - 1, {2}}});
  EXPECT_EQ(seen.failures, std::vector<std::string>());
  const auto names = run.names();
  const float a = run.norm(end - 1, of_block(names, 0)), b = run.norm(end - 1, of_block(names, 2));
  int looked_at = 0;
  for (const std::string& name : of_block(names, 1)) {
    const Values now = run.tensor(end, name), grad = run.tensor(end, name, "exp_avg");
    const Values before = run.tensor(end - 1, moved(name, 1, 0)),
                 after = run.tensor(end - 1, moved(name, 1, 2));
    for (std::size_t i = 0; i < now.size(); ++i) {
      if (std::abs(grad[i]) < 1e-6F) continue;
      const float was = (a * before[i] + b * after[i]) / (a + b);
      EXPECT_NEAR(std::abs(now[i] - was), 1.1 * 3e-3, 2e-6) << name << " " << i;
      ++looked_at;
    }
  }
  EXPECT_GT(looked_at, 1000);
}

TEST(CheckFreePlusRun, FirstAndLastStageAreCopiesOfTheirPartners) {
  for (const auto& [rank, block, partner] :
       {std::tuple(1, 0, 1), std::tuple(2, 1, 0), std::tuple(4, 3, 2)}) {
    CheckFreeRun run(with_idle_end(kSwapped));
    const auto seen = run.train({{CheckFreeRun::kSteps - 1, {rank}}});
    EXPECT_EQ(seen.failures, std::vector<std::string>());
    EXPECT_EQ(seen.epochs, 2);
    run.expect_every_step_once();
    for (const std::string& name : of_block(run.names(), block)) {
      EXPECT_EQ(run.tensor(CheckFreeRun::kSteps, name),
                run.tensor(CheckFreeRun::kSteps, moved(name, block, partner)))
          << name;
    }
    const std::string source = run.epochs()[1]["source"];
    EXPECT_NE(source.find(fmt::format("stage {} as stage {} is (CheckFree+); not exact", rank,
                                      partner + 1)),
              std::string::npos)
        << source;
  }
}

/// Embedding and head are kept twice: the run ends as if nothing had been lost.
TEST(CheckFreePlusRun, EmbeddingAndHeadComeBackExactly) {
  CheckFreeRun undisturbed(kSwapped), run(kSwapped);
  undisturbed.train({});
  const auto seen = run.train({{2, {0}}, {4, {0}}});
  EXPECT_EQ(seen.failures, std::vector<std::string>());
  EXPECT_EQ(seen.epochs, 3);
  expect_same_state(run.last(), undisturbed.last());
  const std::string source = run.epochs()[1]["source"];
  EXPECT_EQ(source.find("rank 0 is lost: stage 0 from the copy on rank 1; exact"), 0U) << source;
}

/// What cannot be made of neighbours comes from the checkpoint, with all else.
TEST(CheckFreeRun, NeighboursLostTogetherAndTheEndsGoBackToTheCheckpoint) {
  const std::vector<std::pair<Settings, std::vector<std::set<int>>>> cases = {
      {kInOrder, {{2, 3}, {1}, {4}, {0}}}, {kSwapped, {{1, 2}, {0, 1}}}};
  for (const auto& [settings, all_lost] : cases) {
    CheckFreeRun undisturbed(settings);
    undisturbed.train({});
    for (const std::set<int>& lost : all_lost) {
      SCOPED_TRACE(fmt::format("{}, ranks {}", settings.back(), fmt::join(lost, ", ")));
      CheckFreeRun run(settings);
      const auto seen = run.train({{4, lost}});
      EXPECT_EQ(seen.failures, std::vector<std::string>());
      EXPECT_EQ(seen.epochs, 2);
      expect_same_state(run.last(), undisturbed.last());
      const std::string source = run.epochs()[1]["source"];
      EXPECT_NE(source.find("all go back from step 4 to the checkpoint"), std::string::npos)
          << source;
    }
  }
}

/// The next stage is lost while the first still has fresh moments; then the first again.
TEST(CheckFreePlusRun, StagesMayBeLostOneAfterTheOther) {
  CheckFreeRun run(kSwapped);
  const auto seen = run.train({{1, {3}}, {2, {4}}, {3, {0}}, {4, {3}}, {5, {1}}});
  EXPECT_EQ(seen.failures, std::vector<std::string>());
  EXPECT_EQ(seen.epochs, 6);
  run.expect_every_step_once();
  EXPECT_EQ(run.trainer(CheckFreeRun::kSteps)["made_anew"],
            (std::map<int, std::int64_t>{{0, 5}, {2, 4}, {3, 2}}));
}

TEST(CheckFreeRun, RefusesByNameWhatStagesCannotBeMadeOf) {
  struct Case {
    int ranks;
    Settings settings;
    std::string named;  ///< nothing: it is allowed
    int blocks = 4;
  };
  const std::string plain = "recover.stages=\"checkfree\"", plus = "recover.stages=\"checkfree+\"",
                    routes = "parallel.schedule=\"routes\"", swap = "parallel.routes=\"swap\"";
  const std::vector<Case> cases = {
      {2, {"parallel.pp=2", plain}, "parallel.pp = 2"},
      {3, {"parallel.pp=3", plain}, "stages of 1, 2, 1 blocks"},
      {4, {"parallel.pp=4", "parallel.schedule=\"routes\"", plain}, ""},
      {8, {"parallel.pp=4", "parallel.dp=2", "parallel.zero=1", plain}, "parallel.zero = 1"},
      {8, {"parallel.pp=4", "parallel.tp=2", plain}, "parallel.tp = 2"},
      {4,
       {"parallel.pp=4", "parallel.vocabulary=\"pipeline\"", plain},
       "parallel.vocabulary = \"pipeline\""},
      {5, {"parallel.pp=5", plus, routes}, "micro-batches that all visit stages in one order"},
      {6, {"parallel.pp=6", plus, routes, swap}, "6 blocks over 6 stages", 6},
      {3, {"parallel.pp=3", plus, routes, swap}, ""}};
  for (const Case& tried : cases) {
    CheckFreeRun run(tried.settings, tried.ranks, tried.blocks);
    const auto seen = run.train({});
    if (tried.named.empty()) {
      EXPECT_EQ(seen.failures, std::vector<std::string>());
      continue;
    }
    ASSERT_FALSE(seen.failures.empty()) << tried.named;
    EXPECT_NE(seen.failures.front().find("\" does not go with " + tried.named), std::string::npos)
        << seen.failures.front();
  }
}

}  // namespace
}  // namespace heddle
