#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include "recover/membership/limits.h"

namespace heddle::recover {

/// Why each epoch of a run ended, as one of its members came to know it, and when. Not thread-safe.
class Causes {
 public:
  using Time = std::chrono::nanoseconds;

  /// How it is known; what is known better stays.
  enum class Source : std::uint8_t { none, guess, others, own };
  struct Cause {
    std::string text = {};
    Source source = Source::none;
    Duration detect{};  ///< from the last sign of life of who was lost to `ended_at`
    Time ended_at{}, decided_at{};
  };

  /// `detect` counts where this member found it out itself.
  void set(std::uint64_t epoch, std::string text, Source source, Duration detect = {});
  void ended(std::uint64_t epoch, Time now);
  /// What follows it was agreed on, perhaps before it was known here that it had ended.
  void decided(std::uint64_t epoch, Time now);
  /// Of one that nothing is known of: without a text.
  Cause of(std::uint64_t epoch) const;

 private:
  std::map<std::uint64_t, Cause> of_;
};

}  // namespace heddle::recover
