#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "comm/flight_recorder.h"

namespace heddle {

/// For how long a rank has done nothing but wait for calls of its communicators. Thread-safe: calls
/// end on other threads too, always before whoever waits for them goes on.
class WaitMeter {
 public:
  /// Is told every call that has ended.
  void add(const CommCall& call) {
    if (!call.is_waited_for) return;
    const auto waited = std::chrono::nanoseconds(call.ended - call.waited);
    nanoseconds_ += waited.count();
  }
  double seconds() const { return 1e-9 * static_cast<double>(nanoseconds_.load()); }

 private:
  std::atomic<std::int64_t> nanoseconds_ = 0;
};

}  // namespace heddle
