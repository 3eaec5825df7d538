#include "recover/neighbour_source.h"
#include "train/checkfree_run.h"

namespace heddle {
namespace {

constexpr std::int64_t kEnd = CheckFreeRun::kSteps;
const Comers kNobody = {.replace = false};

/// A pipeline, and a rank that it goes on without.
struct SkipCase {
  const char* name;
  Settings settings;
  int ranks, blocks;
  int lost;
  std::vector<int> blocks_of_lost;

  /// Of one process that goes on with its checkpoint.
  Settings alone() const {
    Settings kept = {"recover.elastic=false"};
    for (const std::string& setting : settings) {
      if (setting.starts_with("optim.")) kept.push_back(setting);
    }
    return kept;
  }
  friend void PrintTo(const SkipCase& tried, std::ostream* out) { *out << tried.name; }
};

const Settings kPlain = {"parallel.pp=3", "recover.stages=\"skip\""};
const Settings kRoutes = {"parallel.pp=5", "parallel.schedule=\"routes\"",
                          "recover.stages=\"skip\""};

Settings with(Settings settings, const Settings& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

Json left_out(int begin, int end, int before, int after) {
  return {{"begin", begin}, {"end", end}, {"before", before}, {"after", after}};
}

/// RunState::left_out of a checkpoint, without the weights.
Json left_out_of(const CheckFreeRun& run, std::int64_t step) {
  Json all = run.trainer(step).value("left_out", Json::array());
  for (Json& blocks : all) blocks.erase("weights");
  return all;
}

/// A checkpoint of one run as that of another, in which these blocks are left out.
void copy_checkpoint(const CheckFreeRun& from, std::int64_t step, const CheckFreeRun& to,
                     const Json& left_out = {}) {
  const auto folder = to.files().checkpoint(step);
  std::filesystem::create_directories(folder.parent_path());
  std::filesystem::copy(from.files().checkpoint(step), folder,
                        std::filesystem::copy_options::recursive);
  if (left_out.is_null()) return;
  Json manifest = parse_json(read_text_file(folder / kManifestFile), "manifest");
  manifest["trainer"]["left_out"] = left_out;
  const std::string text = manifest.dump();
  write_file_atomically(real_file_system(), folder / kManifestFile, text);
  write_file_atomically(real_file_system(), folder / kCommitFile, commit_text(text));
}

/// EXPECTs the same weights and moments, but of these blocks.
void expect_same_but(const CheckFreeRun& a, const CheckFreeRun& b, const std::vector<int>& blocks) {
  int compared = 0;
  for (const std::string kind : {kWeightsKind, "exp_avg", "exp_avg_sq", "momentum_buffer"}) {
    for (const std::string& name : a.names(kind)) {
      if (std::ranges::find(blocks, recover::block_of(name)) != blocks.end()) continue;
      EXPECT_EQ(a.tensor(kEnd, name, kind), b.tensor(kEnd, name, kind)) << kind << " " << name;
      ++compared;
    }
  }
  EXPECT_GT(compared, 30);
}

class SkipPipeline : public ::testing::TestWithParam<SkipCase> {};

/// The lost stage is passed by from the first step on, forward and backward, and all else is
/// trained as by one process that has the same weights and leaves the same blocks out.
TEST_P(SkipPipeline, GoesOnWithoutALostStageAsOneProcessDoes) {
  const SkipCase& tried = GetParam();
  const int first = tried.blocks_of_lost.front(),
            count = static_cast<int>(tried.blocks_of_lost.size());
  const Json expected = Json::array({left_out(first, first + count, first - count, first + count)});
  CheckFreeRun run(tried.settings, tried.ranks, tried.blocks);
  const auto seen = run.train({{3, {tried.lost}}}, kNobody);
  EXPECT_EQ(seen.failures, std::vector<std::string>());
  EXPECT_EQ(seen.epochs, 2);
  EXPECT_EQ(seen.outcomes.size(), static_cast<std::size_t>(tried.ranks - 1));
  run.expect_every_step_once();
  EXPECT_EQ(left_out_of(run, kEnd), expected);
  EXPECT_FALSE(run.trainer(kEnd).contains("made_anew"));

  CheckFreeRun alone(tried.alone(), 1, tried.blocks);
  Json with_weights = expected;
  with_weights[0]["weights"] = {0.0, 0.0};
  copy_checkpoint(run, 3, alone, with_weights);
  alone.train_in_one_world();
  expect_same_but(run, alone, tried.blocks_of_lost);
  const auto losses = [](const CheckFreeRun& of) {
    std::vector<double> losses;
    for (const Json& line : of.files().metrics()) {
      if (line.contains("loss") && line["step"] > 3) losses.push_back(line["loss"]);
    }
    return losses;
  };
  EXPECT_EQ(losses(run).size(), 3u);
  EXPECT_EQ(losses(run), losses(alone));
}

/// A run that is stopped meanwhile goes on so: all bits are those of the run that was not.
TEST_P(SkipPipeline, ResumesFromACheckpointWithTheBlocksStillLeftOut) {
  const SkipCase& tried = GetParam();
  CheckFreeRun run(tried.settings, tried.ranks, tried.blocks);
  run.train({{2, {tried.lost}}}, kNobody);
  CheckFreeRun alone(tried.alone(), 1, tried.blocks),
      fewer(tried.settings, tried.ranks, tried.blocks);
  copy_checkpoint(run, 4, alone);
  alone.train_in_one_world();
  expect_same_state(run.last(), alone.last());
  EXPECT_EQ(left_out_of(alone, kEnd), left_out_of(run, kEnd));
  // So many ranks cut the pipeline otherwise, and leave out the same.
  copy_checkpoint(run, 4, fewer);
  EXPECT_EQ(fewer.train_with(tried.ranks - 1).failures, std::vector<std::string>());
  expect_same_state(run.last(), fewer.last());
  EXPECT_EQ(left_out_of(fewer, kEnd), left_out_of(run, kEnd));
}

INSTANTIATE_TEST_SUITE_P(
    Pipelines, SkipPipeline,
    ::testing::Values(
        SkipCase{"plain", kPlain, 3, 6, 1, {2, 3}},
        SkipCase{"split_backward", with(kPlain, {"parallel.schedule=\"zb-h1\""}), 3, 6, 1, {2, 3}},
        SkipCase{"recomputed", with(kPlain, {"train.recompute=\"block\""}), 3, 6, 1, {2, 3}},
        SkipCase{"muon", with(kPlain, {"optim.name=\"muon\""}), 3, 6, 1, {2, 3}},
        SkipCase{"routes", kRoutes, 5, 4, 3, {2}}),
    [](const auto& info) { return info.param.name; });

std::vector<std::string> of_blocks(const CheckFreeRun& run, const std::vector<int>& blocks) {
  std::vector<std::string> names;
  for (const int block : blocks) {
    std::ranges::copy(of_block(run.names(), block), std::back_inserter(names));
  }
  return names;
}

/// Who comes takes the place of the lost stage. Its blocks become the mean of those beside them as
/// these are when it comes, weighted by the norms of their gradients in the last step.
TEST(SkipRun, MakesTheBlocksOfTheirNeighboursWhenARankComes) {
  CheckFreeRun run(with_idle_end(kPlain), 3, 6);
  const auto seen = run.train({{2, {1}}}, {.replace = false, .joins = {4}});
  EXPECT_EQ(seen.failures, std::vector<std::string>());
  EXPECT_EQ(seen.epochs, 3);
  EXPECT_EQ(seen.outcomes.size(), 3u);
  run.expect_every_step_once();
  EXPECT_EQ(left_out_of(run, kEnd - 1), Json::array({left_out(2, 4, 0, 4)}));
  EXPECT_EQ(left_out_of(run, kEnd), Json::array());
  EXPECT_EQ(run.trainer(kEnd)["made_anew"],
            (std::map<int, std::int64_t>{{2, kEnd - 1}, {3, kEnd - 1}}));
  auto first = of_blocks(run, {0, 1}), third = of_blocks(run, {4, 5});
  first.emplace_back("model.embed_tokens.weight");
  third.insert(third.end(), {"model.norm.weight", "lm_head.weight"});
  const float a = run.norm(kEnd - 1, first), b = run.norm(kEnd - 1, third);
  EXPECT_NE(a, b);
  for (const int block : {2, 3}) {
    for (const std::string& name : of_block(run.names(), block)) {
      expect_mean(run.tensor(kEnd, name), run.tensor(kEnd - 1, moved(name, block, block - 2)), a,
                  run.tensor(kEnd - 1, moved(name, block, block + 2)), b, name);
      // Second moments have seen one gradient.
      const Values gradient = run.tensor(kEnd, name, "exp_avg"),
                   second = run.tensor(kEnd, name, "exp_avg_sq");
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        ASSERT_FLOAT_EQ(second[i], 0.05F * gradient[i] * gradient[i]) << name << " " << i;
      }
    }
  }
  // The others stay as they are.
  for (const auto* names : {&first, &third}) {
    for (const std::string& name : *names) {
      EXPECT_EQ(run.tensor(kEnd, name), run.tensor(kEnd - 1, name)) << name;
    }
  }
  const Json epochs = run.epochs();
  ASSERT_EQ(epochs.size(), 3u);
  EXPECT_EQ(epochs[1]["source"],
            "rank 1 is lost: stage 1 (blocks 2 to 3) is left out until a rank takes its place, and "
            "is then made of stages 0 and 2; not exact, going on behind step 2");
  EXPECT_EQ(epochs[1]["mesh"], "dp=1 tp=1 pp=2");
  const std::string source = epochs[2]["source"];
  EXPECT_EQ(source.find("ranks have come: blocks 2 to 3, left out until now, as the mean of blocks "
                        "0 to 1 and blocks 4 to 5, weighted "),
            0u)
      << source;
  EXPECT_NE(
      source.find("learning rates are 1.1 times the schedule's there, going on behind step 5"),
      std::string::npos)
      << source;
  EXPECT_NE(run.page().find("is left out until a rank takes its place"), std::string::npos);

  // A run that was stopped then and has all its ranks again makes the same of its checkpoint.
  CheckFreeRun resumed(with_idle_end(kPlain), 3, 6);
  copy_checkpoint(run, kEnd - 1, resumed);
  EXPECT_EQ(resumed.train_with(3).failures, std::vector<std::string>());
  expect_same_state(resumed.last(), run.last());
  EXPECT_EQ(left_out_of(resumed, kEnd), Json::array());
  EXPECT_EQ(resumed.trainer(kEnd)["made_anew"], run.trainer(kEnd)["made_anew"]);
}

TEST(SkipRun, MakesALostStageAtOnceWhereSomebodyTakesItsPlace) {
  CheckFreeRun run(kPlain, 3, 6);
  const auto seen = run.train({{3, {1}}});
  EXPECT_EQ(seen.failures, std::vector<std::string>());
  EXPECT_EQ(seen.epochs, 2);
  EXPECT_EQ(run.trainer(kEnd)["made_anew"], (std::map<int, std::int64_t>{{2, 3}, {3, 3}}));
  EXPECT_EQ(left_out_of(run, kEnd), Json::array());
}

/// Stages that are not beside each other, one after the other; of the two who then come each takes
/// the place of one.
TEST(SkipRun, LeavesSeveralStagesOutAndTakesThemBackOneByOne) {
  const Settings six = {"parallel.pp=6", "parallel.schedule=\"routes\"", "recover.stages=\"skip\""};
  CheckFreeRun run(six, 6, 5);
  const auto seen = run.train({{1, {2}}, {2, {4}}}, {.replace = false, .joins = {3, 4}});
  EXPECT_EQ(seen.failures, std::vector<std::string>());
  EXPECT_EQ(seen.epochs, 5);
  EXPECT_EQ(seen.outcomes.size(), 6u);
  run.expect_every_step_once();
  EXPECT_EQ(left_out_of(run, 3), Json::array({left_out(1, 2, 0, 2), left_out(3, 4, 2, 4)}));
  EXPECT_EQ(left_out_of(run, 5), Json::array({left_out(3, 4, 2, 4)}));
  EXPECT_EQ(left_out_of(run, 6), Json::array());
  EXPECT_EQ(run.trainer(kEnd)["made_anew"], (std::map<int, std::int64_t>{{1, 4}, {3, 5}}));
  const Json epochs = run.epochs();
  EXPECT_EQ(epochs[2]["source"],
            "rank 3 is lost: stage 4 (block 3) is left out until a rank takes its place, and is "
            "then made of stages 3 and 5, block 1 stays left out until a rank comes; not exact, "
            "going on behind step 2");
}

/// What cannot be left out, because nothing could be made in its place, comes from the checkpoint.
TEST(SkipRun, NeighboursAndTheEndsGoBackToTheCheckpoint) {
  for (const std::set<int>& lost : std::vector<std::set<int>>{{2, 3}, {1}, {4}, {0}}) {
    SCOPED_TRACE(fmt::format("ranks {}", fmt::join(lost, ", ")));
    CheckFreeRun run(kRoutes);
    const auto seen = run.train({{4, lost}}, kNobody);
    EXPECT_EQ(seen.failures, std::vector<std::string>());
    EXPECT_EQ(seen.epochs, 2);
    const std::string source = run.epochs()[1]["source"];
    EXPECT_NE(source.find("all go back from step 4 to the checkpoint"), std::string::npos)
        << source;
    EXPECT_EQ(left_out_of(run, kEnd), Json::array());
  }
  // The neighbour of a stage that is left out already: all go back, and leave it out still.
  CheckFreeRun run(kRoutes);
  const auto seen = run.train({{2, {2}}, {4, {3}}}, kNobody);
  EXPECT_EQ(seen.failures, std::vector<std::string>());
  EXPECT_EQ(seen.epochs, 3);
  const std::string source = run.epochs()[2]["source"];
  EXPECT_NE(source.find("stage 2 beside it is lost too; all go back"), std::string::npos) << source;
  EXPECT_EQ(left_out_of(run, kEnd), Json::array({left_out(1, 2, 0, 2)}));
}

/// As `eval --layers` of the checkpoint does.
TEST(SkipRun, EvaluationsLeaveTheBlocksOut) {
  CheckFreeRun run(kPlain, 3, 6);
  run.train({{3, {1}}}, kNobody);
  std::map<std::int64_t, double> evaluated;
  for (const Json& line : run.files().metrics()) {
    if (line.contains("eval_loss")) evaluated[line["step"]] = line["eval_loss"];
  }
  ASSERT_TRUE(evaluated.contains(kEnd));
  const auto eval = [&](const std::string& layers) {
    const Outcome outcome = run_heddle(
        {"eval", run.last().string(), "--data", (run.files().path() / "held_out.tokens").string(),
         "--max-tokens", "256", "--seq", "32", "--layers", layers, "--json"});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return parse_json(outcome.out, "stdout")["loss"].get<double>();
  };
  EXPECT_NEAR(eval("0-1,4-5"), evaluated[kEnd], 1e-6);
  EXPECT_GT(std::abs(eval("0-5") - evaluated[kEnd]), 1e-4);
}

TEST(SkipRun, RefusesByNameWhatStagesCannotBeMadeOf) {
  const std::string skip = "recover.stages=\"skip\"";
  const std::vector<std::tuple<int, Settings, std::string>> cases = {
      {2, {"parallel.pp=2", skip}, "parallel.pp = 2"},
      {3, {"parallel.pp=3", skip}, "stages of 1, 2, 1 blocks"},
      {8, {"parallel.pp=4", "parallel.dp=2", "parallel.zero=1", skip}, "parallel.zero = 1"},
      {8, {"parallel.pp=4", "parallel.tp=2", skip}, "parallel.tp = 2"},
      {4,
       {"parallel.pp=4", "parallel.vocabulary=\"pipeline\"", skip},
       "parallel.vocabulary = \"pipeline\""}};
  for (const auto& [ranks, settings, named] : cases) {
    CheckFreeRun run(settings, ranks);
    const auto seen = run.train({});
    ASSERT_FALSE(seen.failures.empty()) << named;
    EXPECT_NE(seen.failures.front().find("recover.stages = \"skip\" does not go with " + named),
              std::string::npos)
        << seen.failures.front();
  }
}

}  // namespace
}  // namespace heddle
