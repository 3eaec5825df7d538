#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "comm/flight_recorder.h"
#include "comm/mpi/side_channel.h"
#include "comm/verdict.h"
#include "comm/watchdog.h"
#include "comm/world_failure.h"

namespace heddle {

/// A thread in every process of a world of processes. It carries reports of what the ranks do to
/// rank 0, which judges them, and the reason of a failure to everybody. Since an MPI call cannot be
/// interrupted, it ends a process whose rank does not stop in time after the world failed.
///
/// The user hears of a failure once: a rank that fails asks rank 0, which lets the first one tell
/// it and stops the world when that is done; rank 0 tells its own verdicts, and of a rank that is
/// gone. When rank 0 is gone itself, rank 1 says so.
class MpiMonitor {
 public:
  /// All ranks make theirs at the same time; `from_first` gives everybody the text of rank 0.
  MpiMonitor(int rank, int size, const std::function<std::string(std::string)>& from_first,
             WatchdogOptions options, std::shared_ptr<WorldFailure> failure,
             std::shared_ptr<FlightRecorder> flight);
  ~MpiMonitor();
  MpiMonitor(const MpiMonitor&) = delete;
  MpiMonitor& operator=(const MpiMonitor&) = delete;

  /// Makes all ranks fail with this reason, this one included, unless they fail of another one.
  /// `text` is for the user. Returns when the others were told, or cannot be.
  void stop_world(const std::string& reason, ErrorCode code, const std::string& text) noexcept;
  /// Ends a rank that failed: stops the world if this is what it fails of, writes the last calls,
  /// and throws `own`, or StoppedByPeer when another rank tells why, or RanksLost.
  [[noreturn]] void fail_rank(const std::exception_ptr& own);
  /// This rank has ended well.
  void say_ended();

 private:
  void run();
  void handle(const SideChannel::Event& event);
  void tell_news();
  /// What the world fails of.
  struct Cause {
    int rank = 0;
    ErrorCode code = ErrorCode::peer;
    std::string reason;
    std::vector<int> lost = {};
  };
  void tell(const std::string& text) const;
  void tell_verdict(const Verdict& verdict) const;
  /// On rank 0: the first cause is the one.
  void choose(Cause cause);
  /// On rank 0: the chosen rank cannot tell the cause itself.
  void tell_for_chosen();
  void announce(const Cause& cause, int teller);
  /// On the others: rank 0 is gone or silent.
  void lose_first();
  void beat();
  /// On rank 0, when a rank is gone: what are the others doing now? Judges when they have answered.
  void ask_ranks();
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
  std::set<int> asked_;                                       // and did not answer yet
  std::chrono::steady_clock::time_point asked_at_;
  bool first_has_ended_ = false;
  std::optional<Cause> chosen_;  // on rank 0: it was asked to tell what it fails of
  std::chrono::steady_clock::time_point chosen_at_;
  std::chrono::steady_clock::time_point failed_at_;

  std::mutex mutex_;
  std::condition_variable told_;
  std::vector<std::string> news_;  // lines from this rank that are to be told
  std::string own_text_;           // what this rank fails of, for the user
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace heddle
