#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "observe/terminal.h"

namespace heddle::observe {

struct ProgressOptions {
  std::string label = {};   ///< "tokenizing corpus.jsonl"
  std::uint64_t total = 0;  ///< 0: unknown, then neither percentage nor ETA is shown
  std::string unit = "B";   ///< "B" counts bytes; anything else is counted by thousands
  Terminal terminal = {};
  std::function<double()> clock = {};  ///< seconds, monotonic; absent: the system's
};

/// One line that says how far a long job is: percentage, rate and time left. On a terminal it is
/// rewritten in place, elsewhere a plain line appears at most every ten seconds, and a job that
/// takes less than two seconds prints nothing. Thread-safe.
class Progress {
 public:
  explicit Progress(ProgressOptions options);
  /// Removes the live line when finish() was not reached.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `amount` more is done. Cheap enough to call for every document.
  void add(std::uint64_t amount);
  /// Work that was already done by an earlier run: counts for the percentage, not for the rate.
  void skip(std::uint64_t amount);
  /// Ends the line with the total and the time it took. Call it once, from one thread.
  void finish();

 private:
  double elapsed() const;
  std::string describe(double seconds) const;
  void show(double seconds);

  ProgressOptions options_;
  double start_;
  std::atomic<std::uint64_t> done_{0};
  std::uint64_t skipped_ = 0;
  std::atomic<double> next_show_;
  std::mutex showing_;
  bool has_live_line_ = false;
};

}  // namespace heddle::observe
