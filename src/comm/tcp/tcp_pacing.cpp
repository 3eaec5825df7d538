#include "comm/tcp/tcp_pacing.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "comm/tcp/tcp_info.h"

namespace heddle {
namespace {

using Seconds = std::chrono::duration<double>;

/// Round trips between two looks: a queue fills and empties in one or two.
constexpr double kTripsBetween = 4;
constexpr Seconds kLeastBetween{0.25};
/// A pause after which the way has to be looked at anew.
constexpr std::chrono::milliseconds kLongPause{100};
/// Of the round trip without queues: the way is too full, and it has room.
constexpr double kTooLong = 1.4, kShort = 1.1;
constexpr double kUp = 1.05, kUpFast = 1.25;
/// Of the rate without a limit: others who fill the queue must not take the whole way.
constexpr double kLeastShare = 0.8;

}  // namespace

StripesState stripes_state(std::span<const Socket> sockets) {
  StripesState all;
  for (const Socket& socket : sockets) {
    const auto info = tcp_info(socket);
    if (!info || !info->delivered) return {};
    all.delivered += *info->delivered;
    all.round_trip += info->round_trip / static_cast<double>(sockets.size());
    if (const double least = info->least_round_trip; least > 0.0) {
      all.least_round_trip =
          all.least_round_trip == 0.0 ? least : std::min(all.least_round_trip, least);
    }
  }
  return all;
}

void PacedRate::look(const StripesState& now, double seconds) {
  const auto before = std::exchange(before_, now.delivered);
  if (!before || now.delivered <= *before || now.least_round_trip <= 0) return;
  const double rate = (now.delivered - *before) / seconds;
  const double longer = now.round_trip / now.least_round_trip;
  if (limit_ > 0.0) {
    limit_ =
        longer > kTooLong ? std::max(least_, rate) : (longer < kShort ? kUpFast : kUp) * limit_;
  } else if (longer > kTooLong) {
    least_ = kLeastShare * rate;
    limit_ = rate;
  }
}

void TcpPacing::begin() {
  const auto now = Clock::now();
  if (now - last_use_ < kLongPause) return;
  rate_.forget();
  next_ = now;
}

void TcpPacing::look() {
  const auto now = last_use_ = Clock::now();
  if (now < next_) return;
  const StripesState found = stripes_state(sockets_);
  const double before = rate_.limit();
  rate_.look(found, Seconds(now - counted_from_).count());
  counted_from_ = now;
  const Seconds between = std::max(kLeastBetween, Seconds(kTripsBetween * found.least_round_trip));
  next_ = now + std::chrono::duration_cast<Clock::duration>(between);
  if (rate_.limit() == before) return;
  const auto each =
      static_cast<std::uint64_t>(rate_.limit() / static_cast<double>(sockets_.size()));
  for (const Socket& socket : sockets_) {
    setsockopt(socket.get(), SOL_SOCKET, SO_MAX_PACING_RATE, &each, sizeof(each));
  }
}

}  // namespace heddle
