// Sites are lost while they train apart, as processes that meet over TCP: the others stop, or meet
// again and go on.

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <optional>
#include <random>
#include <thread>

#include "base/strings.h"
#include "comm/threads/thread_world.h"
#include "config/load.h"
#include "train/site_processes.h"
#include "train/trainer.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;
using Settings = SiteProcesses::Settings;

constexpr std::int64_t kSteps = 40;
const Settings kLong = {"train.steps=40",        "checkpoint.every=4", "checkpoint.keep=99",
                        "checkpoint.best=false", "train.eval_every=0", "optim.schedule=constant"};
const Settings kGoOn = {"outer.lost=go-on", "run.timeout=5"};

Settings operator+(Settings a, const Settings& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// What happens to some ranks once the site is known to have ended a step.
struct Loss {
  std::vector<int> ranks;
  int signal = SIGKILL;
  int site = 1;
  std::int64_t after_step = 0;
  std::chrono::microseconds later{0};
  std::chrono::seconds stands_still{0};  ///< of SIGSTOP; 0: for ever
};

bool wait_until(const std::function<bool()>& is_so) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(80);
  while (!is_so()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  }
  return true;
}

/// Of a file that may change, or end, meanwhile.
std::string text_of(const fs::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

bool has_done(const SiteProcesses& sites, int site, std::int64_t step) {
  return text_of(sites.folder(site) / "metrics.jsonl")
             .find(fmt::format("\"step\":{},\"tokens\"", step)) != std::string::npos;
}

/// The process that this one started as the rank; 0: there is none.
pid_t process_of(int rank) {
  const std::string variable = fmt::format("RANK={}", rank);
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string status = text_of(entry.path() / "status");
    if (status.find(fmt::format("PPid:\t{}\n", getpid())) == std::string::npos) continue;
    for (const auto& part : split(text_of(entry.path() / "environ"), '\0')) {
      if (part == variable) return std::stoi(name);
    }
  }
  return 0;
}

/// Trains while some ranks are lost.
std::vector<Outcome> train_and_lose(const SiteProcesses& sites, const Settings& more,
                                    const Loss& loss) {
  std::atomic<bool> is_over = false;
  const auto send = [&](int signal) {
    for (const int rank : loss.ranks) {
      if (const pid_t process = process_of(rank); process > 0) kill(process, signal);
    }
  };
  std::thread fate([&] {
    if (!wait_until([&] { return is_over || has_done(sites, loss.site, loss.after_step); })) return;
    std::this_thread::sleep_for(loss.later);
    send(loss.signal);
    if (loss.signal != SIGSTOP) return;
    if (loss.stands_still.count() > 0) {
      std::this_thread::sleep_for(loss.stands_still);
      return send(SIGCONT);
    }
    // A stopped process does not end by itself: the others have, or never will.
    wait_until([&] { return is_over || fs::exists(sites.checkpoint(0, kSteps)); });
    send(SIGKILL);
  });
  const auto outcomes = sites.train(kLong + more);
  is_over = true;
  fate.join();
  return outcomes;
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++found;
  return found;
}

/// The step from which a rank went on after the loss, by its last word about it; 0: from the start.
std::int64_t resumed_at(const Outcome& outcome) {
  const auto at = outcome.err.rfind("resuming from");
  if (at == std::string::npos) return 0;
  const auto step = outcome.err.find("at step ", at);
  return std::stoll(outcome.err.substr(step + 8));
}

/// EXPECTs what sites that are left have in the end to be what they come to that were never
/// disturbed, from the same checkpoint of all sites on.
void expect_undisturbed(const SiteProcesses& sites, const std::vector<int>& left,
                        std::int64_t from) {
  const Outcome whole = sites.train_as_threads(kLong);
  ASSERT_EQ(whole.status, 0) << whole.err;
  for (std::int64_t step = from + 1; step <= kSteps; ++step) {
    fs::remove_all(sites.run().checkpoint(step));
  }
  const auto config = config::load_run_file(sites.run().path() / "run.toml",
                                            sites.settings() + kLong, sites.ranks())
                          .config;
  const int ranks_each = sites.ranks() / config.parallel.sites;
  const TrainOptions options{.terminal = {.is_silent = true},
                             .settings = {},
                             .sites_left = left,
                             .loss = "for comparison"};
  run_ranks(static_cast<int>(left.size()) * ranks_each,
            [&](World& world) { train(config, options, world); });
  const auto expected = tensors_of(sites.run().checkpoint(kSteps));
  std::size_t compared = 0;
  for (const int site : left) {
    for (const auto& [name, bytes] : tensors_of(sites.checkpoint(site, kSteps))) {
      ASSERT_TRUE(expected.contains(name)) << name;
      EXPECT_TRUE(bytes == expected.at(name)) << "site " << site << ": " << name << " differs";
      ++compared;
    }
  }
  EXPECT_EQ(compared, left.size() * 5);  // weights, velocity; own weights and two moments
}

TEST(LostSite, OfTwoRanksIsLeftBehindAtAnyMoment) {
  const unsigned seed = std::random_device()();
  std::mt19937 random(seed);
  const SiteProcesses sites(3, 2);
  const Loss loss{.ranks = {2, 3},
                  .after_step = 2 + static_cast<std::int64_t>(random() % 20),
                  .later = std::chrono::microseconds(random() % 30'000)};
  const auto outcomes = train_and_lose(sites, kGoOn, loss);
  SCOPED_TRACE(fmt::format("seed {}\n{}", seed, all_text(outcomes)));
  for (const int rank : {0, 1, 4, 5}) {
    ASSERT_EQ(outcomes[static_cast<std::size_t>(rank)].status, 0) << rank;
  }
  for (const int rank : loss.ranks) {
    EXPECT_EQ(outcomes[static_cast<std::size_t>(rank)].signal, SIGKILL) << rank;
  }
  for (const int site : {0, 2}) {
    const std::string log = read_text_file(sites.folder(site) / "log.txt");
    EXPECT_EQ(count(log, "site 1 is lost: "), 1) << log;
    EXPECT_EQ(count(log, "going on with sites 0, 2"), 1) << log;
  }
  const std::int64_t from = resumed_at(outcomes[0]);
  EXPECT_EQ(from, resumed_at(outcomes[4]));
  EXPECT_GE(from, loss.after_step - 8);
  expect_undisturbed(sites, {0, 2}, from);
}

TEST(LostSite, OfOneRankInAnExchangeLeavesASingleSiteThatGoesOn) {
  const SiteProcesses sites(2);
  // What is sent in step 16 arrives in step 17.
  const auto outcomes = train_and_lose(sites, kGoOn, {.ranks = {1}, .after_step = 16});
  SCOPED_TRACE(all_text(outcomes));
  ASSERT_EQ(outcomes[0].status, 0);
  EXPECT_EQ(outcomes[1].signal, SIGKILL);
  EXPECT_EQ(count(outcomes[0].err, "site 1 is lost: the process of rank 1 "), 1);
  EXPECT_EQ(count(outcomes[0].err, "going on with site 0 "), 1);
  expect_undisturbed(sites, {0}, resumed_at(outcomes[0]));
  // A step counts the tokens of one site now.
  std::int64_t tokens = 0;
  const std::string metrics = read_text_file(sites.folder(0) / "metrics.jsonl");
  const auto last = metrics.rfind("\"tokens\":");
  tokens = std::stoll(metrics.substr(last + 9));
  const std::int64_t from = resumed_at(outcomes[0]);
  EXPECT_EQ(tokens, from * 128 + (kSteps - from) * 64);
}

TEST(LostSite, ThatIsFrozenIsFoundAfterTheTimeout) {
  const SiteProcesses sites(3);
  const auto outcomes =
      train_and_lose(sites, kGoOn + Settings{"run.timeout=3"},
                     {.ranks = {2}, .signal = SIGSTOP, .site = 2, .after_step = 9});
  SCOPED_TRACE(all_text(outcomes));
  ASSERT_EQ(outcomes[0].status, 0);
  ASSERT_EQ(outcomes[1].status, 0);
  EXPECT_EQ(count(outcomes[0].err, "site 2 is lost: "), 1);
  EXPECT_EQ(count(outcomes[1].err, "site 2 is lost: "), 1);
  expect_undisturbed(sites, {0, 1}, resumed_at(outcomes[0]));
}

TEST(LostSite, WithOneRankLeftEndsThatRankToo) {
  const SiteProcesses sites(2, 2);
  const auto outcomes = train_and_lose(sites, kGoOn, {.ranks = {3}, .after_step = 6});
  SCOPED_TRACE(all_text(outcomes));
  EXPECT_EQ(outcomes[0].status, 0);
  EXPECT_EQ(outcomes[1].status, 0);
  EXPECT_EQ(outcomes[2].status, 4);
  EXPECT_TRUE(says(outcomes[2], "site 1 is lost, the others go on without it"));
}

TEST(LostSite, StopsTheRunUnlessItIsToGoOn) {
  const SiteProcesses sites(2);
  const auto outcomes = train_and_lose(sites, {"run.timeout=5"}, {.ranks = {1}, .after_step = 6});
  SCOPED_TRACE(all_text(outcomes));
  EXPECT_EQ(outcomes[0].status, 4);
  EXPECT_TRUE(says(outcomes[0], "error: the process of rank 1 "));
  EXPECT_FALSE(says(outcomes[0], "is lost"));
}

TEST(LostSite, OfRankZeroEndsAll) {
  const SiteProcesses sites(3);
  const auto outcomes = train_and_lose(sites, kGoOn, {.ranks = {0}, .site = 0, .after_step = 6});
  SCOPED_TRACE(all_text(outcomes));
  EXPECT_EQ(outcomes[0].signal, SIGKILL);
  EXPECT_EQ(outcomes[1].status, 4);
  EXPECT_EQ(outcomes[2].status, 4);
  EXPECT_TRUE(says(outcomes[1], "site 0 is lost, and with it rank 0, where all sites meet"));
}

TEST(LostSite, MayComeBackWhenAllAreStartedAgainAndItIsAccepted) {
  const SiteProcesses sites(2);
  auto outcomes =
      train_and_lose(sites, kGoOn + Settings{"train.steps=20"}, {.ranks = {1}, .after_step = 6});
  ASSERT_EQ(outcomes[0].status, 0) << all_text(outcomes);
  fs::remove_all(sites.folder(1));
  fs::copy(sites.folder(0), sites.folder(1), fs::copy_options::recursive);
  const Settings longer = kLong + kGoOn + Settings{"train.steps=24"};
  outcomes = sites.train(longer);
  expect_statuses(outcomes, 2);
  EXPECT_TRUE(says(outcomes[0], "site 1 was lost before")) << all_text(outcomes);
  outcomes = sites.train(longer, {"--accept-changes"});
  SCOPED_TRACE(all_text(outcomes));
  expect_statuses(outcomes, 0);
  EXPECT_TRUE(says(outcomes[1], "has nothing of site 1"));
}

/// A site that stands still while it waits itself waits as long as the others: then once more.
TEST(SlowSite, IsNamedWhereSitesMeet) {
  using namespace std::chrono_literals;
  const std::string named = "site 1 kept others waiting for ";
  std::optional<SiteProcesses> sites;
  std::vector<Outcome> outcomes;
  for (int turn = 0; turn < 5 && (turn == 0 || !says(outcomes[0], named)); ++turn) {
    sites.emplace(2);
    outcomes =
        train_and_lose(*sites, {"checkpoint.every=0"},  // where they would wait too
                       {.ranks = {1}, .signal = SIGSTOP, .after_step = 6, .stands_still = 2s});
  }
  SCOPED_TRACE(all_text(outcomes));
  expect_statuses(outcomes, 0);
  for (const Outcome& outcome : outcomes) EXPECT_TRUE(says(outcome, named));
  const std::string report = read_text_file(sites->folder(0) / "report.json");
  EXPECT_NE(report.find("site 1 waited"), std::string::npos);
  EXPECT_NE(read_text_file(sites->folder(1) / "report.html").find("Waiting for other sites"),
            std::string::npos);
}

TEST(LostSite, CannotBeLeftBehindByThreads) {
  const SiteProcesses sites(2);
  const Outcome outcome = sites.train_as_threads(kGoOn);
  EXPECT_EQ(outcome.status, 2) << outcome.err;
  EXPECT_NE(outcome.err.find("outer.lost = \"go-on\" needs ranks that can meet again"),
            std::string::npos)
      << outcome.err;
}

}  // namespace
}  // namespace heddle
