#include "comm/threads/thread_world.h"

#include <fmt/format.h>

#include <condition_variable>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "comm/failure_text.h"
#include "comm/threads/thread_backend.h"

namespace heddle {

ThreadWorld::ThreadWorld(int ranks, WatchdogOptions watch)
    : watch_(std::move(watch)), failure_(std::make_shared<WorldFailure>()) {
  HEDDLE_CHECK(ranks > 0, "a world of {} ranks", ranks);
  auto group = std::make_shared<Group>();
  group->ranks.resize(static_cast<std::size_t>(ranks));
  std::iota(group->ranks.begin(), group->ranks.end(), 0);
  const auto shared = std::make_shared<ThreadGroup>(failure_, std::move(group));
  failure_->watch(shared);
  for (int rank = 0; rank < ranks; ++rank) {
    worlds_.push_back(std::make_unique<World>(
        std::make_unique<Communicator>(std::make_shared<ThreadBackend>(rank, shared),
                                       std::make_shared<FlightRecorder>(rank), "world")));
  }
}

struct ThreadWorld::Outcome {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::exception_ptr> failures;  // by rank
  int running = 0;
  int first = -1;  // the rank that failed first
};

void ThreadWorld::run(const std::function<void(World&)>& body) {
  Outcome outcome;
  outcome.failures.resize(worlds_.size());
  outcome.running = size();
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size(); ++rank) {
      threads.emplace_back([&, rank] { run_rank(rank, body, outcome); });
    }
    std::optional<Watchdog> watchdog;
    if (watch_.limit.count() > 0) {
      const auto collect = [this] {
        std::vector<RankReport> reports;
        for (const auto& world : worlds_) reports.push_back(world->flight().report());
        return reports;
      };
      watchdog.emplace(watch_.limit, collect,
                       [this](const std::string& verdict) { failure_->fail(verdict); });
    }
    wait_for_all(outcome);
  }
  if (failure_->has_failed() && !watch_.flight_folder.empty()) write_flight();
  if (outcome.first >= 0) {
    std::rethrow_exception(outcome.failures[static_cast<std::size_t>(outcome.first)]);
  }
  failure_->check();
}

void ThreadWorld::run_rank(int rank, const std::function<void(World&)>& body, Outcome& outcome) {
  std::exception_ptr failure;
  bool is_agreed = false;
  try {
    body(world(rank));
    world(rank).flight().set_finished();
  } catch (const AgreedError&) {
    failure = std::current_exception();
    is_agreed = true;
    world(rank).flight().set_finished();
  } catch (...) {
    failure = std::current_exception();
  }
  const bool is_first =
      failure && !is_agreed &&
      failure_->fail(fmt::format("rank {} stopped: {}", rank, failure_text(failure)));
  const std::lock_guard lock(outcome.mutex);
  outcome.failures[static_cast<std::size_t>(rank)] = failure;
  if (is_first || (is_agreed && outcome.first < 0)) outcome.first = rank;
  --outcome.running;
  outcome.changed.notify_all();
}

void ThreadWorld::wait_for_all(Outcome& outcome) {
  std::unique_lock lock(outcome.mutex);
  const auto ended = [&] { return outcome.running == 0; };
  if (!watch_.give_up) return outcome.changed.wait(lock, ended);
  // A failure comes without a notice here, so look for it now and then.
  while (!failure_->has_failed()) {
    if (outcome.changed.wait_for(lock, std::chrono::milliseconds(100), ended)) return;
  }
  if (outcome.changed.wait_for(lock, watch_.grace, ended)) return;
  if (!watch_.flight_folder.empty()) write_flight();
  watch_.give_up(failure_->reason());
  outcome.changed.wait(lock, ended);
}

void ThreadWorld::write_flight() const {
  for (const auto& world : worlds_) {
    const auto name = fmt::format("rank-{}.jsonl", world->rank());
    try {
      world->flight().write(watch_.flight_folder / name);
    } catch (const Error& error) {
      // The reason of the failure matters more than this one.
      log_warn("the last calls of rank {} are lost: {}", world->rank(), error.what());
    }
  }
}

void run_ranks(int ranks, const std::function<void(World&)>& body, WatchdogOptions watch) {
  ThreadWorld(ranks, std::move(watch)).run(body);
}

}  // namespace heddle
