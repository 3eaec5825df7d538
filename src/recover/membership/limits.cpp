#include "recover/membership/limits.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace heddle::recover {

namespace {

using std::chrono::milliseconds;
constexpr milliseconds kLeastHeartbeat{100};
constexpr std::chrono::seconds kRemembered{10};

}  // namespace

Limits derive_limits(Duration timeout, const Measured& measured, Duration least_silence) {
  const auto [round_trip, step, late] = measured;
  HEDDLE_CHECK(timeout.count() > 0 && round_trip.count() >= 0 && step.count() >= 0,
               "a time-out of {} ns", timeout.count());
  Limits limits;
  limits.heartbeat = std::max<Duration>(kLeastHeartbeat, round_trip);
  limits.silent_after =
      std::max({std::clamp<Duration>(3 * step, milliseconds(1200), milliseconds(1800) + 2 * late),
                8 * limits.heartbeat, least_silence});
  limits.missed_call = std::max<Duration>(std::chrono::seconds(1), 3 * step);
  limits.round = 4 * limits.heartbeat;
  // Time for a silence to be noticed by all, and for a few attempts.
  limits.give_up = std::max(timeout, 2 * limits.silent_after + 8 * limits.round);
  return limits;
}

void Lateness::look(Duration now) {
  const Duration gap = looked_at_ ? now - *looked_at_ : Duration{};
  looked_at_ = now;
  if (gap > kLeastHeartbeat) gaps_.push_back({now, gap});
  while (!gaps_.empty() && now - gaps_.front().at > kRemembered) gaps_.pop_front();
}

Duration Lateness::longest(Duration now) const {
  Duration longest{};
  for (const Gap& gap : gaps_) {
    if (now - gap.at <= kRemembered) longest = std::max(longest, gap.length);
  }
  return longest;
}

std::string text_of(const Limits& limits) {
  const auto seconds = [](Duration time) { return std::chrono::duration<double>(time).count(); };
  return fmt::format(
      "heartbeats every {:.2f} s, silent after {:.2f} s, a call missed after {:.2f} s, a round of "
      "agreement {:.2f} s, giving up after {:.0f} s",
      seconds(limits.heartbeat), seconds(limits.silent_after), seconds(limits.missed_call),
      seconds(limits.round), seconds(limits.give_up));
}

}  // namespace heddle::recover
