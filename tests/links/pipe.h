#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace heddle::links {

/// Since any fixed moment; the pipe never asks a clock.
using Time = std::chrono::nanoseconds;

struct PipeSettings {
  double bits_per_second = 0;  ///< of IP packets with their headers; 0 for no limit
  Time delay{0};
  Time jitter{0};   ///< each packet takes up to this much longer, uniformly
  double loss = 0;  ///< share of packets that use the link and do not arrive
  /// A packet that would wait longer than `queue`, or behind more than `queue_bytes` where that is
  /// given, is dropped.
  Time queue = std::chrono::milliseconds(100);
  double queue_bytes = 0;
  bool may_reorder = false;  ///< whether jitter may let a packet overtake another

  /// Takes "rate=100mbit", "delay=25ms", "jitter=2ms", "loss=0.01" or "loss=1%", "queue=50ms" or
  /// "queue=1mb", "reorder=yes". Throws Error (usage).
  void change(const std::string& assignment);
};

/// One direction of a link: packets leave one after the other at its rate, then travel.
class Pipe {
 public:
  /// The same key gives the same losses and the same jitter.
  explicit Pipe(std::uint64_t key) : key_(key) {}
  Pipe(std::uint64_t key, const PipeSettings& settings) : settings(settings), key_(key) {}

  /// When a packet that enters at `now` arrives; nothing when it is dropped or lost. Calls come in
  /// the order of time. What has entered keeps its time when settings change.
  std::optional<Time> pass(std::size_t packet_bytes, Time now);

  PipeSettings settings;

 private:
  Time longest_wait() const;

  std::uint64_t key_, draws_ = 0;
  Time free_at_{0}, last_arrival_{0};
};

}  // namespace heddle::links
