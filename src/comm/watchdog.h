#pragma once

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/rank_report.h"

namespace heddle {

struct WatchdogOptions {
  /// How long a call may wait, or a rank be silent. 0: for ever.
  std::chrono::duration<double> limit{0};
  /// How long ranks that are processes may take to find each other. 0: for ever.
  std::chrono::duration<double> joining{120};
  /// Says why ranks that are processes fail, on the one of them that knows it, and before the
  /// others are told: whoever started them may end this one as soon as another ends. Absent: nobody
  /// says it, the errors thrown do. Any thread.
  std::function<void(const std::string& text)> tell = {};
  /// The same of ranks that are lost (Verdict::lost). Absent: `tell` is for that too.
  std::function<void(const std::string& text)> tell_lost = {};
  /// Where rank-N.jsonl, the last calls of each rank, is written when the run fails. Empty:
  /// nowhere.
  std::filesystem::path flight_folder = {};
  /// How long the ranks may take to stop once the world has failed. Then, since a thread that hangs
  /// cannot be ended, `give_up` is called with the reason, to end the process. Absent, or where it
  /// returns: a rank that is a process ends with the failure's code, threads are waited for.
  std::chrono::duration<double> grace{5};
  std::function<void(const std::string& reason)> give_up = {};
};

/// A thread that looks at all ranks of a world and gives one verdict when a call waits too long.
class Watchdog {
 public:
  /// `collect` gives a report per rank, in order; `fail` makes the world fail with the verdict.
  Watchdog(std::chrono::duration<double> limit, std::function<std::vector<RankReport>()> collect,
           std::function<void(const std::string& verdict)> fail);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void watch();

  const std::chrono::duration<double> limit_;
  const std::function<std::vector<RankReport>()> collect_;
  const std::function<void(const std::string&)> fail_;
  std::mutex mutex_;
  std::condition_variable stopping_;
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace heddle
