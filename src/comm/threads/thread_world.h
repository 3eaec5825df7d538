#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "comm/threads/thread_group.h"
#include "comm/watchdog.h"
#include "comm/world.h"

namespace heddle {

/// Ranks that are threads of this process.
class ThreadWorld {
 public:
  explicit ThreadWorld(int ranks, WatchdogOptions watch = {});

  int size() const { return static_cast<int>(worlds_.size()); }
  /// For the thread that is this rank.
  World& world(int rank) const { return *worlds_[static_cast<std::size_t>(rank)]; }
  WorldFailure& failure() const { return *failure_; }

  /// Runs `body` once per rank, each on a thread of its own, and returns when all have ended. When
  /// some fail, throws the failure of the rank that failed first: the others then fail because of
  /// it. When a watchdog or a dispute about calls ended the run, throws that verdict. Once only.
  void run(const std::function<void(World&)>& body);

 private:
  struct Outcome;
  void run_rank(int rank, const std::function<void(World&)>& body, Outcome& outcome);
  void wait_for_all(Outcome& outcome);
  void write_flight() const;

  const WatchdogOptions watch_;
  std::shared_ptr<WorldFailure> failure_;
  std::vector<std::unique_ptr<World>> worlds_;
};

/// A world of `ranks` threads that runs `body`.
void run_ranks(int ranks, const std::function<void(World&)>& body, WatchdogOptions watch = {});

}  // namespace heddle
