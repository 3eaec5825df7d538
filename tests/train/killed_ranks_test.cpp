#include <random>

#include "train/elastic_processes.h"

namespace heddle {
namespace {

/// What differs where a process is starved of processors is left out: who is killed is found by its
/// connection, which closes.
constexpr std::chrono::seconds kSilence{30};

/// Kills one process after the other at a random moment, each when all that there should be have
/// made a step together; another takes its place.
void kill_some(ElasticProcesses& run, int members, int kills) {
  std::mt19937_64 random(7);
  for (int kill = 0; kill < kills; ++kill) {
    ASSERT_TRUE(run.wait_for_members(members)) << kill;
    run.hold_behind(std::ssize(run.steps()) + static_cast<std::int64_t>(random() % 4));
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 40));
    const std::vector<int> there = run.processes();
    run.end_at_once(there[random() % there.size()]);
    run.join();
  }
  ASSERT_TRUE(run.wait_for_members(members));
  run.go_on();
}

/// Weights and moments are those of a run that nobody disturbs, bit for bit, and every step is made
/// once.
void expect_as_left_alone(int spares, std::vector<std::string> settings, const Json& model) {
  settings.insert(settings.end(), {"train.steps=160", "train.tokens_per_step=128",
                                   "train.microbatch=1", "checkpoint.every=1000", "parallel.zero=0",
                                   "recover.elastic=true", "recover.timeout=60"});
  ElasticProcesses alone(4, settings, model, kSilence);
  for (const int process : alone.processes()) EXPECT_EQ(alone.status(process), 0) << process;
  ElasticProcesses run(4, settings, model, kSilence);
  run.hold_behind(1);
  for (int spare = 0; spare < spares; ++spare) {
    ASSERT_TRUE(run.wait_for_members(4 + spare));
    run.join();
  }
  kill_some(run, 4 + spares, 3);
  for (const int process : run.processes()) EXPECT_EQ(run.status(process), 0) << process;
  expect_every_step_once(run);
  expect_same_state(run.last(), alone.last());
}

/// One waits: it takes the place of the lost rank at once, so every sum has the same parts. The
/// other replica has what was lost.
TEST(KilledRanks, AreReplacedFromReplicasWithoutATrace) {
  expect_as_left_alone(1, {"parallel.dp=2", "parallel.pp=2"}, Json::object());
}

/// The same in sites that stay in step, at any moment of their exchanges.
TEST(KilledRanks, OfSitesAreReplacedFromReplicasWithoutATrace) {
  expect_as_left_alone(1, {"parallel.sites=2", "parallel.dp=2", "outer.every=6"}, Json::object());
}

/// Three stages until another comes: without clipping no sum depends on how the pipeline is cut. A
/// neighbour has a copy of what was lost.
TEST(KilledRanks, AreReplacedFromCopiesWithoutATrace) {
  expect_as_left_alone(0, {"parallel.pp=4", "recover.copies=1", "optim.clip=0"},
                       {{"num_hidden_layers", 4}});
}

}  // namespace
}  // namespace heddle
