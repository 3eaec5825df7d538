#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/flight_recorder.h"
#include "comm/mpi/side_channel.h"
#include "comm/watchdog.h"
#include "comm/world_failure.h"

namespace heddle {

/// A thread in every process of an MPI world. It carries reports of what the ranks do to rank 0,
/// which judges them, and the reason of a failure to everybody. Since an MPI call cannot be
/// interrupted, it ends a process whose rank does not stop in time after the world failed: by
/// WatchdogOptions::give_up, or, where that is absent or returns, with status 4.
class MpiMonitor {
 public:
  /// All ranks make theirs at the same time; `from_first` gives everybody the text of rank 0.
  MpiMonitor(int rank, int size, const std::function<std::string(std::string)>& from_first,
             WatchdogOptions options, std::shared_ptr<WorldFailure> failure,
             std::shared_ptr<FlightRecorder> flight);
  ~MpiMonitor();
  MpiMonitor(const MpiMonitor&) = delete;
  MpiMonitor& operator=(const MpiMonitor&) = delete;

  /// Makes all ranks fail with this reason, this one included. Returns when the others were told,
  /// or cannot be.
  void stop_world(const std::string& reason) noexcept;
  /// This rank has ended well.
  void say_ended();

 private:
  void run();
  void handle(const SideChannel::Event& event);
  void tell_news();
  void announce(const std::string& reason);
  void beat();
  void judge_ranks();
  void give_up_in_time();
  double seconds_since(std::chrono::steady_clock::time_point then) const;

  const int rank_, size_;
  const WatchdogOptions options_;
  const double limit_;  // infinite when there is none
  const std::shared_ptr<WorldFailure> failure_;
  const std::shared_ptr<FlightRecorder> flight_;
  SideChannel channel_;

  // On rank 0: what is known of each rank.
  std::vector<RankReport> reports_;
  std::vector<std::chrono::steady_clock::time_point> heard_;  // elsewhere only of rank 0
  bool first_has_ended_ = false;
  std::chrono::steady_clock::time_point failed_at_;

  std::mutex mutex_;
  std::condition_variable told_;
  std::vector<std::string> news_;  // lines from this rank that are to be told
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace heddle
