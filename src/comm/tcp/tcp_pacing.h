#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <vector>

#include "comm/tcp/tcp_socket.h"

namespace heddle {

/// What several connections to one rank have done together; zeros where the system does not say.
struct StripesState {
  double delivered = 0.0;       ///< bytes that the other side has, also those behind missing ones
  double round_trip = 0.0;      ///< seconds, now: the mean of all
  double least_round_trip = 0;  ///< seconds, without queues
};

StripesState stripes_state(std::span<const Socket> sockets);

/// The rate at which connections to one rank should send together. Each of them finds a rate for
/// itself, and together these are more than the way takes: what is too much waits in a queue, is
/// dropped there and sent again, and messages come late. A queue shows as a longer round trip.
/// Losses do not count: on some ways packets are lost at any rate.
class PacedRate {
 public:
  /// So many seconds after the last look, or forget(). The first look behind that only remembers.
  void look(const StripesState& now, double seconds);
  /// Sending paused: what was delivered meanwhile says nothing about the way.
  void forget() { before_.reset(); }
  double limit() const { return limit_; }  ///< bytes per second; 0: none

 private:
  std::optional<double> before_;  // delivered at the last look
  double limit_ = 0.0, least_ = 0.0;
};

/// Keeps connections to such a rate, by the kernel's pacing. One thread.
class TcpPacing {
 public:
  explicit TcpPacing(const std::vector<Socket>& sockets) : sockets_(sockets) {}

  /// Before a message, perhaps after a pause.
  void begin();
  /// While it is being sent; most calls return at once.
  void look();

 private:
  using Clock = std::chrono::steady_clock;

  const std::vector<Socket>& sockets_;
  PacedRate rate_;
  Clock::time_point counted_from_ = {}, next_ = {}, last_use_ = {};
};

}  // namespace heddle
