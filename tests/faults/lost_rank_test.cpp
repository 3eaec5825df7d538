// Training runs whose ranks are lost while they train: the others go on, and somebody else takes
// the place.

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <future>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "base/strings.h"
#include "cli/rank_processes.h"
#include "observe/epochs.h"
#include "train/tiny_run.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kLong = {
    "train.steps=60",          "checkpoint.every=20",       "train.eval_every=0", "data.prefetch=0",
    "optim.schedule=constant", "train.tokens_per_step=256", "recover.timeout=10"};

constexpr const char* kToken = "the token of this test, which is long";

std::string text_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Of this run's processes the one that was started last as this rank; 0: there is none.
pid_t process_of(const TinyRun& run, int rank) {
  pid_t newest = 0;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (text_of(entry.path() / "cmdline").find(run.path().string()) == std::string::npos) continue;
    for (const auto& part : split(text_of(entry.path() / "environ"), '\0')) {
      if (part == fmt::format("RANK={}", rank)) newest = std::max(newest, std::stoi(name));
    }
  }
  return newest;
}

bool has_done(const TinyRun& run, std::int64_t step) {
  return text_of(run.run_folder() / "metrics.jsonl").find(fmt::format("\"step\":{},", step)) !=
         std::string::npos;
}

struct Loss {
  int rank = 0;
  int signal = SIGKILL;
  std::int64_t after_step = 0;
};

/// Launches four ranks and does this to some of them, one after the other.
Outcome launch(const TinyRun& run, const std::vector<std::string>& mesh,
               const std::vector<std::string>& flags, const std::vector<Loss>& losses) {
  std::vector<std::string> settings = kLong;
  settings.insert(settings.end(), mesh.begin(), mesh.end());
  std::vector<std::string> words = {"launch", "--ranks", "4"};
  words.insert(words.end(), flags.begin(), flags.end());
  words.emplace_back("--");
  for (const auto& word : run.command(settings)) words.push_back(word);
  std::atomic<bool> is_over = false;
  std::thread fate([&] {
    for (const Loss& loss : losses) {
      while (!is_over && !has_done(run, loss.after_step)) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      const pid_t process = is_over ? 0 : process_of(run, loss.rank);
      if (process > 0) kill(process, loss.signal);
    }
  });
  const Outcome outcome = run_heddle(words);
  is_over = true;
  fate.join();
  return outcome;
}

void expect_every_step_once(const TinyRun& run, std::int64_t last) {
  std::vector<std::int64_t> steps;
  for (const Json& line : run.metrics()) {
    if (line.contains("loss") && line.contains("tokens")) steps.push_back(line.at("step"));
  }
  std::vector<std::int64_t> all(static_cast<std::size_t>(last));
  std::iota(all.begin(), all.end(), 1);
  EXPECT_EQ(steps, all);
}

TEST(Elastic, AKilledRankDoesNotEndTheRun) {
  for (const int lost : {2, 0}) {
    const TinyRun run;
    const Outcome outcome =
        launch(run, {"parallel.zero=0"}, {}, {{.rank = lost, .after_step = 10}});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_NE(outcome.err.find(fmt::format("the process of rank {} is gone", lost)),
              std::string::npos)
        << outcome.err;
    expect_every_step_once(run, 60);
  }
}

TEST(Elastic, AKilledRankIsReplacedByAnotherProcess) {
  const TinyRun run;
  const Outcome outcome =
      launch(run, {"parallel.zero=0", "parallel.dp=2", "parallel.pp=2", "train.steps=500"},
             {"--restart"}, {{.rank = 3, .after_step = 10}});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const auto lost = outcome.err.find("the process of rank 3 is lost; another is started");
  ASSERT_NE(lost, std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("1 newcomer is let in; 4 ranks go on as epoch", lost),
            std::string::npos)
      << outcome.err;
  expect_every_step_once(run, 500);
}

/// As all do, whichever of them a signal comes to first.
TEST(Elastic, ASpareOfARunThatIsStoppedEndsAsOneWithACheckpoint) {
  const TinyRun run;
  const std::vector<std::string> settings = {"train.steps=100000", "parallel.pp=2",
                                             "parallel.dp=1"};
  const auto port = free_port();
  const auto member = [&](int rank) {
    RunOptions options{.environment = by_hand(rank, 2, port)};
    options.environment["HEDDLE_TOKEN"] = kToken;
    if (rank == 0) {
      options.signal = SIGINT;
      options.signal_at = "newcomer is let in";
      options.signal_delay = std::chrono::seconds(1);
    }
    return std::async(std::launch::async,
                      [&, options] { return run.train(settings, {"--elastic"}, options); });
  };
  auto first = member(0), second = member(1);
  while (!has_done(run, 5)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const Outcome spare = run.train(
      settings, {"--join", "--ranks", "2"},
      {.environment = {{"HEDDLE_TOKEN", kToken}}, .signal = SIGINT, .signal_at = "member 2 waits"});
  constexpr int kStopped = static_cast<int>(ErrorCode::stopped);
  EXPECT_EQ(spare.status, kStopped) << spare.err;
  EXPECT_EQ(first.get().status, kStopped);
  EXPECT_EQ(second.get().status, kStopped);
}

/// Two ranks that were started by hand, which are stopped when the first says this.
class ByHand {
 public:
  explicit ByHand(const TinyRun& run, const std::string& until) : run_(run) {
    const auto port = free_port();
    for (int rank = 0; rank < 2; ++rank) {
      RunOptions options{.environment = by_hand(rank, 2, port)};
      options.environment["HEDDLE_TOKEN"] = kToken;
      if (rank == 0) {
        options.signal = SIGINT;
        options.signal_at = until;
        options.signal_delay = std::chrono::seconds(1);
      }
      members_.push_back(std::async(std::launch::async, [this, options] {
        return run_.train(settings_, {"--elastic"}, options);
      }));
    }
    while (!has_done(run_, 5)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  Outcome newcomer(const std::vector<std::string>& others, const char* token = kToken) const {
    std::vector<std::string> settings = settings_;
    settings.insert(settings.end(), others.begin(), others.end());
    return run_.train(settings, {"--join", "--ranks", "2"},
                      {.environment = {{"HEDDLE_TOKEN", token}}});
  }
  Outcome end(int rank) { return members_[static_cast<std::size_t>(rank)].get(); }

 private:
  const TinyRun& run_;
  const std::vector<std::string> settings_ = {"train.steps=100000", "parallel.zero=0",
                                              "parallel.dp=2", "recover.timeout=20"};
  std::vector<std::future<Outcome>> members_;
};

constexpr const char* kSentAway = "who has come with that is not let in";

TEST(Elastic, ANewcomerWithAnotherRunFileEndsAndTheOthersGoOn) {
  const TinyRun run;
  ByHand ranks(run, kSentAway);
  // As a mesh of its own, which would divide ranks otherwise.
  const Outcome newcomer = ranks.newcomer({"parallel.dp=1", "parallel.pp=2"});
  EXPECT_EQ(newcomer.status, static_cast<int>(ErrorCode::usage)) << newcomer.err;
  EXPECT_NE(newcomer.err.find("rank 2 has parallel.dp = 1, rank 0 has 2"), std::string::npos)
      << newcomer.err;
  for (const int rank : {0, 1}) {
    const Outcome outcome = ranks.end(rank);
    EXPECT_EQ(outcome.status, static_cast<int>(ErrorCode::stopped)) << outcome.err;
  }
}

/// The data are opened when it takes the place of somebody.
TEST(Elastic, ANewcomerWithOtherDataEndsAndTheOthersGoOn) {
  const TinyRun run;
  ByHand ranks(run, kSentAway);
  kill(process_of(run, 1), SIGKILL);
  run.write_tokens("other.tokens", 2);
  const Outcome newcomer = ranks.newcomer({"data.train=" + (run.path() / "other.tokens").string()});
  EXPECT_EQ(newcomer.status, static_cast<int>(ErrorCode::usage)) << newcomer.err;
  EXPECT_NE(newcomer.err.find("rank 1 has data.train"), std::string::npos) << newcomer.err;
  const Outcome left = ranks.end(0);
  EXPECT_EQ(left.status, static_cast<int>(ErrorCode::stopped)) << left.err;
}

/// Those that are started in their place would wait for each other.
TEST(Elastic, ALauncherWhoseRanksAreAllKilledEndsSoon) {
  const TinyRun run;
  std::vector<std::string> words = {"launch", "--ranks", "2", "--restart", "--"};
  for (const auto& word : run.command({"train.steps=100000", "recover.timeout=120"})) {
    words.push_back(word);
  }
  std::chrono::steady_clock::time_point killed;
  std::thread fate([&] {
    while (!has_done(run, 5)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const std::array<pid_t, 2> ranks = {process_of(run, 0), process_of(run, 1)};
    killed = std::chrono::steady_clock::now();
    for (const pid_t rank : ranks) kill(rank, SIGKILL);
  });
  const Outcome outcome = run_heddle(words);
  fate.join();
  EXPECT_LT(std::chrono::steady_clock::now() - killed, std::chrono::seconds(30));
  EXPECT_EQ(outcome.status, static_cast<int>(ErrorCode::peer)) << outcome.err;
}

TEST(Elastic, ARankThatIsToldToLeaveGoesAndTheOthersGoOn) {
  const TinyRun run;
  const Outcome outcome =
      launch(run, {"parallel.zero=0"}, {}, {{.rank = 1, .signal = SIGTERM, .after_step = 10}});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("rank 1 was told to leave"), std::string::npos) << outcome.err;
  expect_every_step_once(run, 60);
}

TEST(Elastic, WhatALossCostsWithoutReplicasAndCopiesIsSaidBeforehand) {
  const TinyRun run;
  const std::string words = "a rank that is lost takes all back to the newest checkpoint";
  const auto said = [&](std::vector<std::string> settings) {
    settings.insert(settings.end(), {"recover.elastic=true", "train.tokens_per_step=256"});
    return run.train(settings, {"--ranks", "4", "--dry-run"});
  };
  const Outcome sharded = said({"parallel.zero=1"});
  EXPECT_EQ(sharded.status, 0) << sharded.err;
  EXPECT_NE(sharded.err.find(words), std::string::npos) << sharded.err;
  for (const char* safe : {"parallel.zero=0", "recover.copies=1"}) {
    const Outcome outcome = said({safe});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(outcome.err.find(words), std::string::npos) << outcome.err;
  }
  // A dry run refuses what the run would.
  EXPECT_EQ(said({"optim.name=muon"}).status, static_cast<int>(ErrorCode::usage));
}

TEST(Elastic, AFrozenRankDoesNotKeepALauncherWhoseRunHasFailed) {
  const TinyRun run;
  const Outcome outcome =
      launch(run, {"parallel.zero=1"}, {}, {{.rank = 1, .signal = SIGSTOP, .after_step = 10}});
  EXPECT_EQ(outcome.status, static_cast<int>(ErrorCode::data)) << outcome.err;
  EXPECT_NE(outcome.err.find("there is no checkpoint"), std::string::npos) << outcome.err;
}

/// What it alone has is saved before it goes, so nobody goes back.
TEST(Elastic, ARankThatIsToldToLeaveTakesNothingWithIt) {
  for (const char* mesh : {"parallel.dp=4", "parallel.pp=2"}) {
    const TinyRun run;
    const Outcome outcome = launch(run, {"parallel.zero=1", mesh, "checkpoint.every=1000"}, {},
                                   {{.rank = 1, .signal = SIGTERM, .after_step = 10}});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_NE(outcome.err.find("rank 1 was told to leave"), std::string::npos) << outcome.err;
    expect_every_step_once(run, 60);
    const std::vector<observe::EpochRow> epochs =
        observe::read_epochs(run.run_folder() / "epochs.jsonl");
    ASSERT_EQ(epochs.size(), 2u) << outcome.err;
    EXPECT_NE(epochs[1].source.find(fmt::format("the checkpoint of step {}", epochs[1].step)),
              std::string::npos)
        << epochs[1].source;
  }
}

TEST(Elastic, ARankThatLeftDoesNotMakeALostRunAStoppedOne) {
  const TinyRun run;
  const Outcome outcome = launch(run, {"parallel.zero=0", "train.steps=2000"}, {},
                                 {{.rank = 1, .signal = SIGTERM, .after_step = 10},
                                  {.rank = 0, .after_step = 100},
                                  {.rank = 2, .after_step = 100}});
  EXPECT_EQ(outcome.status, static_cast<int>(ErrorCode::peer)) << outcome.err;
}

TEST(Elastic, NeedsRanksThatAreProcesses) {
  const TinyRun run;
  const Outcome outcome = run.train({"recover.elastic=true"}, {"--ranks", "2"});
  EXPECT_EQ(outcome.status, static_cast<int>(ErrorCode::usage));
  EXPECT_NE(outcome.err.find("recover.elastic needs ranks that are processes joined over TCP"),
            std::string::npos)
      << outcome.err;
}

}  // namespace
}  // namespace heddle
