#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <mutex>
#include <random>
#include <thread>

#include "base/error.h"
#include "base/file_system.h"
#include "comm/threads/thread_world.h"
#include "comm/training_calls.h"

namespace heddle {
namespace {

using testing::kSteps;
using testing::train;
using namespace std::chrono_literals;

constexpr int kRanks = 4;
/// Trials mostly sleep, so several run at a time.
constexpr int kTrials = 100, kAtATime = 10;
constexpr auto kLimit = 400ms;

/// Runs `train` with something done before one call of one rank; returns the message of the
/// failure.
std::string failure_of(ThreadWorld& threads, int rank, int call,
                       const std::function<bool(const CommCall&)>& fault) {
  std::atomic<int> calls = 0;
  threads.world(rank).flight().set_hook(
      [&](const CommCall& made) { return ++calls == call ? fault(made) : true; });
  try {
    threads.run(train);
  } catch (const Error& error) {
    return error.message();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no failure";
}

struct Trial {
  int number, rank, call;
};

void run_trials(const std::function<void(const Trial&)>& body) {
  std::atomic<int> next = 0;
  std::vector<std::jthread> threads;
  for (int i = 0; i < kAtATime; ++i) {
    threads.emplace_back([&] {
      for (int number = next++; number < kTrials; number = next++) {
        std::mt19937 random(static_cast<unsigned>(number));
        const int rank = static_cast<int>(random() % kRanks);
        const int call = 2 + static_cast<int>(random() % (5 * kSteps - 2));
        SCOPED_TRACE("trial " + std::to_string(number) + ": call " + std::to_string(call) +
                     " of rank " + std::to_string(rank));
        body({number, rank, call});
      }
    });
  }
}

std::string last_done_call(const FlightRecorder& flight) {
  std::string text;
  CommCall::Clock::time_point last;
  for (const CommCall& call : flight.calls()) {
    if (call.state == CommCall::State::done && call.ended >= last) {
      last = call.ended;
      text = call.text();
    }
  }
  return text;
}

TEST(Faults, AFrozenRankIsNamedWithItsLastCall) {
  run_trials([](const Trial& trial) {
    ThreadWorld threads(kRanks, {.limit = kLimit});
    const auto freeze = [&](const CommCall&) {
      while (!threads.failure().has_failed()) std::this_thread::sleep_for(5ms);
      return true;
    };
    const std::string message = failure_of(threads, trial.rank, trial.call, freeze);
    EXPECT_TRUE(message.starts_with("rank " + std::to_string(trial.rank) + " has not ")) << message;
    const std::string last = last_done_call(threads.world(trial.rank).flight());
    EXPECT_NE(message.find("its last call was " + last + ", which ended"), std::string::npos)
        << message << "\n"
        << last;
  });
}

TEST(Faults, AKilledRankStopsTheOthersWithItsMessage) {
  run_trials([](const Trial& trial) {
    ThreadWorld threads(kRanks, {.limit = 60s});
    const auto die = [&](const CommCall& call) -> bool {
      fail(ErrorCode::resources, "out of memory in {}", call.text());
    };
    const std::string message = failure_of(threads, trial.rank, trial.call, die);
    EXPECT_TRUE(message.starts_with("out of memory in ")) << message;
    EXPECT_EQ(threads.failure().reason(),
              "rank " + std::to_string(trial.rank) + " stopped: " + message);
  });
}

TEST(Faults, ADesynchronisedRankIsNamed) {
  run_trials([](const Trial& trial) {
    ThreadWorld threads(kRanks, {.limit = kLimit});
    const auto skip = [](const CommCall&) { return false; };
    const std::string message = failure_of(threads, trial.rank, trial.call, skip);
    const std::string name = "rank " + std::to_string(trial.rank);
    EXPECT_TRUE(message.starts_with(name + " is out of step: it is in ") ||
                message.starts_with(name + " has ended and has not ") ||
                (message.starts_with("ranks make different calls") &&
                 message.find(name + " is in ") != std::string::npos))
        << message;
  });
}

TEST(Faults, TheLastCallsOfAllRanksAreWritten) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "faults_test";
  std::filesystem::remove_all(folder);
  ThreadWorld threads(kRanks, {.limit = 60s, .flight_folder = folder / "flight"});
  failure_of(threads, 1, 20, [](const CommCall&) -> bool { fail(ErrorCode::data, "x"); });
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto text =
        read_text_file(folder / "flight" / ("rank-" + std::to_string(rank) + ".jsonl"));
    EXPECT_NE(text.find("\"tag\":\"step, micro-batch 3\""), std::string::npos) << text;
  }
  std::filesystem::remove_all(folder);
}

TEST(Faults, AThreadThatHangsIsGivenUp) {
  std::atomic<bool> release = false;
  std::string reason;
  ThreadWorld threads(kRanks,
                      {.limit = kLimit, .grace = 50ms, .give_up = [&](const std::string& why) {
                         reason = why;
                         release = true;
                       }});
  const std::string message = failure_of(threads, 1, 20, [&](const CommCall&) {
    while (!release) std::this_thread::sleep_for(5ms);
    return true;
  });
  EXPECT_TRUE(message.starts_with("rank 1 has not ")) << message;
  EXPECT_EQ(reason, message);
}

TEST(Faults, NoVerdictOnARunThatIsWell) {
  EXPECT_NO_THROW(run_ranks(kRanks, train, {.limit = 10s}));
}

}  // namespace
}  // namespace heddle
