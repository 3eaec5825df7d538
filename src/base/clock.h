#pragma once

#include <chrono>
#include <string>

namespace heddle {

/// Measures elapsed wall time on the monotonic clock.
class Stopwatch {
 public:
  Stopwatch() : start_(std::chrono::steady_clock::now()) {}
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  void restart() { start_ = std::chrono::steady_clock::now(); }

 private:
  std::chrono::steady_clock::time_point start_;
};

/// The time of day as "2026-11-15T09:30:00Z".
std::string utc_time();

}  // namespace heddle
