#include "train/elastic_processes.h"

namespace heddle {
namespace {

const std::vector<std::string> kSettings = {
    "train.steps=400",     "train.tokens_per_step=256", "train.microbatch=1",
    "checkpoint.every=50", "parallel.zero=0",           "parallel.dp=2",
    "parallel.pp=2",       "recover.elastic=true",      "recover.timeout=20"};

TEST(ElasticProcesses, OneOfFourIsKilledAndAnotherTakesItsPlace) {
  ElasticProcesses run(4, kSettings);
  ASSERT_TRUE(run.wait_for_step(20));
  run.end_at_once(2);
  run.join();
  for (const int process : {0, 1, 3, 4}) EXPECT_EQ(run.status(process), 0) << process;
  expect_every_step_once(run);
  const Json epochs = run.report()["epochs"];
  ASSERT_GE(epochs.size(), 2u);
  double lost = 0;
  for (const auto& [part, seconds] : epochs[1]["seconds"].items()) lost += seconds.get<double>();
  EXPECT_LT(lost, 10.0) << epochs[1];
  RecordProperty("what_the_loss_cost", epochs[1].dump());
  EXPECT_EQ(epochs.back()["mesh"], "dp=2 tp=1 pp=2") << epochs;
  EXPECT_NE(epochs[1]["source"].get<std::string>().find("rank 2 is lost: stage 1 from its replica"),
            std::string::npos)
      << epochs[1];
}

/// Four stages of a block each, of which no other process has any.
const Json kFourBlocks = {{"hidden_size", 16},
                          {"intermediate_size", 24},
                          {"num_hidden_layers", 4},
                          {"num_attention_heads", 2}};
std::vector<std::string> four_stages(const std::string& stages) {
  std::vector<std::string> settings = kSettings;
  settings.insert(settings.end(),
                  {"parallel.dp=1", "parallel.pp=4", fmt::format("recover.stages=\"{}\"", stages)});
  return settings;
}

/// It is made of those beside it.
TEST(ElasticProcesses, AKilledStageIsMadeOfItsNeighbours) {
  ElasticProcesses run(4, four_stages("checkfree"), kFourBlocks);
  ASSERT_TRUE(run.wait_for_step(20));
  run.end_at_once(1);
  run.join();
  for (const int process : {0, 2, 3, 4}) EXPECT_EQ(run.status(process), 0) << process;
  expect_every_step_once(run);
  const Json epochs = run.report()["epochs"];
  ASSERT_GE(epochs.size(), 2u);
  EXPECT_EQ(epochs.back()["mesh"], "dp=1 tp=1 pp=4") << epochs;
  const std::string source = epochs[1]["source"];
  EXPECT_NE(source.find("stage 1 as the mean of stages 0 and 2, weighted"), std::string::npos)
      << source;
}

/// The others go on without it until somebody comes.
TEST(ElasticProcesses, AKilledStageIsLeftOutUntilAnotherProcessComes) {
  ElasticProcesses run(4, four_stages("skip"), kFourBlocks);
  ASSERT_TRUE(run.wait_for_step(20));
  run.end_at_once(2);
  ASSERT_TRUE(run.wait_for_members(3));
  run.join();
  ASSERT_TRUE(run.wait_for_members(4));
  run.go_on();
  for (const int process : {0, 1, 3, 4}) EXPECT_EQ(run.status(process), 0) << process;
  expect_every_step_once(run);
  const Json epochs = run.report()["epochs"];
  ASSERT_GE(epochs.size(), 3u);
  EXPECT_EQ(epochs[1]["mesh"], "dp=1 tp=1 pp=3") << epochs;
  const std::string lost = epochs[1]["source"], back = epochs.back()["source"];
  EXPECT_EQ(lost.find("rank 2 is lost: stage 2 (block 2) is left out until a rank"), 0u) << lost;
  EXPECT_EQ(epochs.back()["mesh"], "dp=1 tp=1 pp=4") << epochs;
  EXPECT_EQ(back.find("ranks have come: block 2, left out until now, as the mean of block 1 and "
                      "block 3"),
            0u)
      << back;
}

TEST(ElasticProcesses, TheFirstIsKilledAndTheOthersGoOn) {
  ElasticProcesses run(4, kSettings);
  ASSERT_TRUE(run.wait_for_step(20));
  run.end_at_once(0);
  for (const int process : {1, 2, 3}) EXPECT_EQ(run.status(process), 0) << process;
  expect_every_step_once(run);
  const Json epochs = run.report()["epochs"];
  ASSERT_EQ(epochs.size(), 2u);
  EXPECT_EQ(epochs[1]["mesh"], "dp=1 tp=1 pp=2") << epochs;
  EXPECT_EQ(epochs[1]["spares"], 1) << epochs;
}

/// No mesh has fewer ranks: the other keeps what it has, also of the lost one, and waits.
TEST(ElasticProcesses, WhereTooFewAreLeftForAnyMeshTheyWaitForAnother) {
  std::vector<std::string> settings = kSettings;
  settings.insert(settings.end(), {"parallel.dp=1", "parallel.pp=1", "parallel.tp=2",
                                   "recover.copies=1", "train.steps=60", "checkpoint.every=1000"});
  ElasticProcesses run(2, settings);
  run.hold_behind(5);
  ASSERT_TRUE(run.wait_for_step(5));
  run.end_at_once(1);
  run.go_on();
  std::this_thread::sleep_for(std::chrono::seconds(2));
  run.join();
  for (const int process : {0, 2}) EXPECT_EQ(run.status(process), 0) << process;
  expect_every_step_once(run);
  const Json epochs = run.report()["epochs"];
  EXPECT_EQ(epochs.back()["mesh"], "dp=1 tp=2 pp=1") << epochs;
  const std::string source = epochs.back()["source"];
  EXPECT_NE(source.find("rank 1 is lost"), std::string::npos) << source;
  EXPECT_EQ(source.find("checkpoint"), std::string::npos) << source;
}

/// With nobody who comes the run ends, with the reason.
TEST(ElasticProcesses, WhereNobodyComesTheyWaitNoLongerThanTheyAreTold) {
  std::vector<std::string> settings = kSettings;
  settings.insert(settings.end(), {"parallel.dp=1", "parallel.pp=1", "parallel.tp=2",
                                   "recover.copies=1", "recover.timeout=6"});
  ElasticProcesses run(2, settings);
  ASSERT_TRUE(run.wait_for_step(5));
  run.end_at_once(1);
  EXPECT_EQ(run.status(0), static_cast<int>(ErrorCode::usage));
}

/// All processes of a site, which two others make anew while the first goes on.
TEST(ElasticProcesses, AKilledSiteIsMadeAnewOfAnother) {
  std::vector<std::string> settings = kSettings;
  settings.insert(settings.end(), {"parallel.sites=2", "parallel.dp=1", "outer.every=8"});
  ElasticProcesses run(4, settings);
  ASSERT_TRUE(run.wait_for_step(20));
  run.end_at_once(2);
  run.end_at_once(3);
  run.join();
  run.join();
  for (const int process : {0, 1, 4, 5}) EXPECT_EQ(run.status(process), 0) << process;
  expect_every_step_once(run);
  const Json epochs = run.report()["epochs"];
  ASSERT_GE(epochs.size(), 2u);
  EXPECT_EQ(epochs.back()["mesh"], "sites=2 dp=1 tp=1 pp=2") << epochs;
  bool is_said = false;
  for (const Json& epoch : epochs) {
    if (!epoch["source"].is_string()) continue;
    const std::string source = epoch["source"];
    EXPECT_EQ(source.find("checkpoint"), std::string::npos) << source;
    const auto at = source.find("site 1 with the weights and moments of site 0; not exact");
    is_said = is_said || at != std::string::npos;
  }
  EXPECT_TRUE(is_said) << epochs;
}

}  // namespace
}  // namespace heddle
