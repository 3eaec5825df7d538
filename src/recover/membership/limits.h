#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <string>

namespace heddle::recover {

using Duration = std::chrono::nanoseconds;

/// How long members wait for each other.
struct Limits {
  Duration heartbeat{};     ///< between two heartbeats of a member
  Duration silent_after{};  ///< who says nothing for so long is not heard any more
  Duration missed_call{};   ///< who makes no call for so long hangs, though it may beat
  Duration round{};         ///< what an attempt to agree may take
  Duration give_up{};       ///< without a quorum, or without being let in
};

/// What limits are derived from.
struct Measured {
  Duration round_trip{};  ///< the longest between members
  Duration step{};        ///< the median of recent ones
  Duration late{};        ///< how long this process got no processor (Lateness)
};

/// All of them from the one that users set, and from what was measured. A dead rank is silent for
/// less than 2 s where links are shorter than 100 ms, a frozen one is found within three steps.
/// Where steps take long there is more patience with a busy machine: who is taken for silent may
/// have the only state. Who is late itself, so that others may be as well, waits for longer than
/// that, but for three steps at most. `least_silence`: never silent before that.
Limits derive_limits(Duration timeout, const Measured& measured, Duration least_silence = {});

/// The longest time that lay between two calls of `look` in the last ten seconds, where they should
/// be some milliseconds apart; of less than a heartbeat nothing is said.
class Lateness {
 public:
  void look(Duration now);
  Duration longest(Duration now) const;

 private:
  struct Gap {
    Duration at{}, length{};
  };
  std::deque<Gap> gaps_;
  std::optional<Duration> looked_at_;
};

/// "heartbeats every 0.10 s, silent after 1.20 s, a call missed after 1.80 s, ..."
std::string text_of(const Limits& limits);

}  // namespace heddle::recover
