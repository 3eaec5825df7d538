#pragma once

#include <chrono>
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

/// All of them from the one that users set, and from what was measured: the longest round trip
/// between members, and the median of recent steps. A dead rank is silent for less than 2 s where
/// links are shorter than 100 ms, a frozen one is found within three steps. Where steps take long
/// there is more patience with a busy machine: who is taken for silent may have the only state.
Limits derive_limits(Duration timeout, Duration round_trip, Duration step);

/// "heartbeats every 0.10 s, silent after 1.20 s, a call missed after 1.80 s, ..."
std::string text_of(const Limits& limits);

}  // namespace heddle::recover
