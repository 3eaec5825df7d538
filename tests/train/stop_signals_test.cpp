#include "train/stop_signals.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <future>
#include <thread>

#include "checkpoint/reader.h"
#include "comm/tcp_listener.h"
#include "support/occurrences.h"
#include "train/tiny_run.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using Doing = RunPlace::Doing;

TEST(SignalLines, SayWhatWillHappenAndWhatASecondOneWouldLose) {
  EXPECT_EQ(first_signal_line(SIGINT, {.doing = Doing::stepping, .step = 11, .saved = 10}),
            "SIGINT: finishing step 12, then saving; once more ends at once and loses the steps "
            "since step-000010");
  EXPECT_EQ(first_signal_line(
                SIGINT, {.doing = Doing::stepping, .step = 11, .saved = 10, .has_sites = true})
                .substr(0, 52),
            "SIGINT: going on until sites meet next, then saving;");
  EXPECT_EQ(first_signal_line(SIGTERM, {.doing = Doing::evaluating, .step = 3}),
            "SIGTERM: giving up the evaluation of step 3, then saving; once more ends at once and "
            "loses all steps, since there is no checkpoint");
  const RunPlace elastic{.doing = Doing::stepping, .step = 11, .saved = 10, .may_leave = true};
  EXPECT_EQ(first_signal_line(SIGTERM, elastic),
            "SIGTERM: finishing step 12, then leaving the run to the others, or saving and ending "
            "where all are told; once more ends this rank at once");
  EXPECT_EQ(first_signal_line(SIGINT, elastic),
            "SIGINT: finishing step 12, then saving; once more ends at once and loses the steps "
            "since step-000010");
  EXPECT_EQ(first_signal_line(SIGHUP, {.doing = Doing::saving, .step = 12, .saved = 10}),
            "SIGHUP: finishing the checkpoint of step 12, then ending; once more ends at once and "
            "loses the steps since step-000010");
  const RunPlace unsaved{.doing = Doing::sampling, .step = 4, .saved = 4, .saves = false};
  EXPECT_EQ(first_signal_line(SIGUSR2, unsaved),
            "SIGUSR2: finishing the sample of step 4, then ending without saving "
            "(checkpoint.on_exit = false); once more ends at once and loses what is not finished");
  EXPECT_EQ(ended_at_once_line(SIGINT, {.doing = Doing::stepping, .step = 492, .saved = 480}),
            "ended at once by SIGINT: 12 steps since the checkpoint at 480 are lost");
}

TEST(SignalLines, CarryTheStatusToTheOtherRanks) {
  const RunPlace place{.doing = Doing::stepping, .step = 2};
  EXPECT_EQ(status_of_rank_ended_at_once("rank 3 stopped: " + ended_at_once_line(SIGTERM, place)),
            128 + SIGTERM);
  EXPECT_EQ(status_of_rank_ended_at_once("rank 3 stopped: out of memory"), std::nullopt);
}

/// A handler on a thread that is inside a kernel of oneDNN damages memory.
TEST(Signals, DoNotInterruptThreadsThatCompute) {
  const StopSignals signals(false);
  StopSignals(false).set_place({.doing = Doing::stepping});
  const auto is_blocked = [] {
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    return sigismember(&blocked, SIGTERM) == 1 && sigismember(&blocked, SIGUSR1) == 1;
  };
  EXPECT_TRUE(is_blocked());
  EXPECT_TRUE(std::async(std::launch::async, is_blocked).get()) << "threads that are started later";
  ::kill(::getpid(), SIGUSR2);
  for (int wait = 0; wait < 1000 && signals.stop_asked() == 0; ++wait) {
    std::this_thread::sleep_for(10ms);
  }
  EXPECT_EQ(signals.stop_asked(), SIGUSR2);
}

/// Steps of seconds: a second signal comes before the first of them ends.
const std::vector<std::string> kLongSteps = {"train.tokens_per_step=786432"};
/// Steps that are long enough for a signal to arrive before the last one.
const std::vector<std::string> kSlow = {"train.tokens_per_step=4096", "train.eval_every=3"};
constexpr auto kIntoTheStep = 100ms;  // after the line of the one before
constexpr auto kNotTheSame = 600ms;   // between two signals that are to count as two

bool said(const Outcome& outcome, const std::string& text) {
  return outcome.err.find(text) != std::string::npos;
}

/// A signal in the second step, and another as soon as the first is answered.
RunOptions twice(int signal) {
  const std::string answer = std::string(signal_name(signal)) + ": finishing step 2, then saving";
  return {.signal = signal,
          .signal_at = "step 1/",
          .signal_delay = kIntoTheStep,
          .signals_after = {{signal, answer, kNotTheSame}}};
}

TEST(Signals, TheFirstIsAnsweredWithinTheStepAndTheSecondSaysWhatIsLost) {
  for (const int ranks : {1, 2}) {
    const TinyRun run;
    const Outcome outcome =
        run.train(kLongSteps, {"--ranks", std::to_string(ranks)}, twice(SIGINT));
    EXPECT_EQ(outcome.status, 128 + SIGINT) << outcome.err;
    EXPECT_TRUE(said(outcome, "SIGINT: finishing step 2, then saving; once more")) << outcome.err;
    EXPECT_TRUE(said(outcome, "ended at once by SIGINT: 1 step made and lost")) << outcome.err;
    EXPECT_FALSE(said(outcome, "step 2/")) << outcome.err;
    EXPECT_FALSE(open_latest(run.checkpoints()).has_value());
    const std::string log = read_text_file(run.run_folder() / "log.txt");
    EXPECT_NE(log.find("ended at once by SIGINT"), std::string::npos) << log;
  }
}

/// For MASTER_PORT: ranks meet at the next one.
std::string free_port() {
  const TcpListener free = listen_on(0, 1);
  ::close(free.socket);
  return std::to_string(free.port - 1);
}

/// Two processes that find each other as torchrun's do; the first gets the signals.
std::pair<Outcome, Outcome> train_two_processes(const TinyRun& run, RunOptions first) {
  const std::string port = free_port();
  const auto place = [&](int rank) {
    return std::map<std::string, std::string>{{"RANK", std::to_string(rank)},
                                              {"LOCAL_RANK", std::to_string(rank)},
                                              {"WORLD_SIZE", "2"},
                                              {"MASTER_ADDR", "127.0.0.1"},
                                              {"MASTER_PORT", port}};
  };
  auto other = std::async(std::launch::async,
                          [&] { return run.train(kLongSteps, {}, {.environment = place(1)}); });
  first.environment = place(0);
  Outcome own = run.train(kLongSteps, {}, first);
  return {own, other.get()};
}

TEST(Signals, ToOneProcessEndAllWithTheSameStatus) {
  const TinyRun ended;
  const auto [at_once, at_once_too] = train_two_processes(ended, twice(SIGTERM));
  EXPECT_EQ(at_once.status, 128 + SIGTERM) << at_once.err;
  EXPECT_EQ(at_once_too.status, 128 + SIGTERM) << at_once_too.err;

  const TinyRun stopped;
  const auto [first, second] = train_two_processes(
      stopped, {.signal = SIGHUP, .signal_at = "step 1/", .signal_delay = kIntoTheStep});
  EXPECT_EQ(first.status, 6) << first.err;
  EXPECT_EQ(second.status, 6) << second.err;
  EXPECT_TRUE(fs::exists(stopped.checkpoint(2)));
}

TEST(Signals, ThatComeTogetherCountAsOne) {
  const TinyRun run;
  const Outcome outcome = run.train(kLongSteps, {},
                                    {.signal = SIGINT,
                                     .signal_at = "step 1/",
                                     .signal_delay = kIntoTheStep,
                                     .signals_after = {{SIGTERM, "", 0ms}}});
  EXPECT_EQ(outcome.status, 6) << outcome.err;
  EXPECT_TRUE(fs::exists(run.checkpoint(2)));
}

TEST(Signals, BeforeTheFirstStepEndTheRunAtOnceButUsr1DoesNot) {
  const TinyRun run;
  // The first of two ranks waits for the other. A signal before it handles any ends it silently.
  const std::map<std::string, std::string> alone = {{"RANK", "0"},
                                                    {"WORLD_SIZE", "2"},
                                                    {"MASTER_ADDR", "127.0.0.1"},
                                                    {"MASTER_PORT", free_port()}};
  Outcome outcome;
  for (auto delay = 500ms; delay < 20s && !said(outcome, "SIGUSR1"); delay *= 2) {
    outcome = run.train({}, {},
                        {.environment = alone,
                         .signal = SIGUSR1,
                         .signal_delay = delay,
                         .signals_after = {{SIGTERM, "SIGUSR1: no step was made yet"}}});
  }
  EXPECT_EQ(outcome.status, 128 + SIGTERM) << outcome.err;
  EXPECT_TRUE(said(outcome, "ended at once by SIGTERM: no step was made yet, nothing is lost"))
      << outcome.err;
}

/// Trains with a signal in the third step; again where the machine was so slow that the run ended
/// before the signal came.
Outcome signalled(const TinyRun& run, int signal, const std::vector<std::string>& flags,
                  const std::vector<std::string>& settings = kSlow) {
  Outcome outcome;
  for (int attempt = 0; attempt < 5 && !said(outcome, signal_name(signal)); ++attempt) {
    fs::remove_all(run.run_folder());
    outcome = run.train(settings, flags, {.signal = signal, .signal_at = "step 2/10"});
  }
  return outcome;
}

TEST(Signals, Usr1SavesACheckpointAndTheRunGoesOnUnchanged) {
  auto settings = kSlow;
  settings.push_back("checkpoint.every=0");
  for (const char* ranks : {"1", "2"}) {
    const TinyRun whole, run;
    ASSERT_EQ(whole.train(settings, {"--ranks", ranks}).status, 0);
    const Outcome outcome = signalled(run, SIGUSR1, {"--ranks", ranks}, settings);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_TRUE(said(outcome, "SIGUSR1: ")) << outcome.err;
    EXPECT_EQ(occurrences(outcome.err, "checkpoint durable"), 2) << outcome.err;
    EXPECT_EQ(run.numbers(), whole.numbers());
  }
}

TEST(Signals, HangupIsIgnoredUnderNohup) {
  const TinyRun run;
  const Outcome outcome =
      run.train(kSlow, {}, {.signal = SIGHUP, .signal_at = "step 2/10", .ignores_hangup = true});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_FALSE(said(outcome, "SIGHUP")) << outcome.err;
}

TEST(Signals, StatusSixIsKeptForRunsThatAreSaved) {
  const TinyRun run;
  auto settings = kSlow;
  settings.insert(settings.end(), {"checkpoint.on_exit=false", "checkpoint.every=0"});
  const Outcome outcome = signalled(run, SIGTERM, {}, settings);
  EXPECT_EQ(outcome.status, 128 + SIGTERM) << outcome.err;
  EXPECT_TRUE(said(outcome, "then ending without saving")) << outcome.err;
}

}  // namespace
}  // namespace heddle
