#include "comm/tcp/tcp_measure.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

#include "comm/tcp/tcp_info.h"
#include "comm/tcp/tcp_pacing.h"

namespace heddle {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

/// A connection has found its rate after some twenty round trips, half of which are measured.
constexpr double kRoundTrips = 20;
constexpr Seconds kShortestStage{0.3}, kLongestStage{4.0};
/// What a stage must gain over the one before, and what does not come from how links are shared.
constexpr double kLeastGain = 1.15, kCertainGain = 2.0;
constexpr std::size_t kBlockBytes = 16 << 10;
constexpr std::chrono::seconds kTimeToDrain{30};

/// What one side tells the other after a stage.
struct StageResult {
  double bytes_per_second = 0.0;
};

/// Fills connections and counts what comes.
class Filler {
 public:
  explicit Filler(const std::vector<Socket>& sockets)
      : sockets_(sockets), sent_(sockets.size()), received_(sockets.size()), block_(kBlockBytes) {
    const int unsent = kBlockBytes;  // what is left in buffers at the end has to be waited for
    for (const Socket& socket : sockets) {
      setsockopt(socket.get(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &unsent, sizeof(unsent));
    }
  }

  /// Bytes that came in a second of the second half; nothing when a connection is gone. Those that
  /// this side sent, where the system says what has come of them: what a program receives lags
  /// behind by whatever is sent again, most of all when connections are new.
  std::optional<double> run(std::size_t count, Seconds time) {
    const auto begin = Clock::now();
    const auto middle = begin + std::chrono::duration_cast<Clock::duration>(0.5 * time);
    const auto end = begin + std::chrono::duration_cast<Clock::duration>(time);
    std::uint64_t at_middle = 0;
    double delivered_at_middle = 0;
    Clock::time_point counted_from{};
    const auto delivered = [&] {
      return stripes_state(std::span(sockets_).first(count)).delivered;
    };
    for (auto now = begin; now < end; now = Clock::now()) {
      if (counted_from == Clock::time_point{} && now >= middle) {
        counted_from = now;
        at_middle = all_received_;
        delivered_at_middle = delivered();
      }
      if (!move(all_sockets(count, POLLIN | POLLOUT))) return std::nullopt;
    }
    const double seconds = Seconds(Clock::now() - counted_from).count();
    if (delivered_at_middle > 0) return (delivered() - delivered_at_middle) / seconds;
    return static_cast<double>(all_received_ - at_middle) / seconds;
  }

  const std::vector<std::uint64_t>& sent() const { return sent_; }

  /// Takes what is still on its way, `expected` of the other side, and not more: when that has all
  /// of its own it goes on to use the connections, and to close some.
  bool drain(const std::vector<std::uint64_t>& expected) {
    const auto until = Clock::now() + kTimeToDrain;
    while (received_ != expected) {
      std::vector<pollfd> entries = all_sockets(sockets_.size(), POLLIN);
      for (std::size_t i = 0; i < entries.size(); ++i) {
        if (received_[i] == expected[i]) entries[i].fd = -1;
      }
      if (Clock::now() >= until || !move(entries, &expected)) return false;
    }
    return true;
  }

 private:
  std::vector<pollfd> all_sockets(std::size_t count, short what) const {
    std::vector<pollfd> entries;
    for (std::size_t i = 0; i < count; ++i) {
      entries.push_back({.fd = sockets_[i].get(), .events = what, .revents = 0});
    }
    return entries;
  }

  bool move(std::vector<pollfd> entries, const std::vector<std::uint64_t>* expected = nullptr) {
    if (poll(entries.data(), entries.size(), 20) < 0 && errno != EINTR) return false;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if ((entries[i].revents & POLLOUT) != 0 && !pass(i, true, kBlockBytes)) return false;
      if ((entries[i].revents & (POLLIN | POLLHUP | POLLERR)) == 0) continue;
      const std::uint64_t left = expected == nullptr ? kBlockBytes : (*expected)[i] - received_[i];
      if (!pass(i, false, std::min<std::uint64_t>(left, kBlockBytes))) return false;
    }
    return true;
  }

  bool pass(std::size_t i, bool is_out, std::size_t most) {
    const int socket = sockets_[i].get();
    const auto moved = is_out ? send(socket, block_.data(), most, MSG_DONTWAIT | MSG_NOSIGNAL)
                              : recv(socket, block_.data(), most, MSG_DONTWAIT);
    if (moved < 0) return errno == EAGAIN || errno == EINTR;
    if (moved == 0) return is_out;
    (is_out ? sent_ : received_)[i] += static_cast<std::uint64_t>(moved);
    if (!is_out) all_received_ += static_cast<std::uint64_t>(moved);
    return true;
  }

  const std::vector<Socket>& sockets_;
  std::vector<std::uint64_t> sent_, received_;  // by connection
  std::uint64_t all_received_ = 0;
  std::vector<std::byte> block_;
};

/// Both sides send and receive; false when the other is gone.
bool exchange(const Socket& first, const void* own, void* other, std::size_t bytes) {
  return write_bytes(first.get(), own, bytes) && read_bytes(first.get(), other, bytes);
}

}  // namespace

Seconds round_trip(const Socket& socket) {
  const auto info = tcp_info(socket);
  if (!info) return Seconds(0);
  return Seconds(info->least_round_trip > 0.0 ? info->least_round_trip : info->round_trip);
}

bool use_wide_area_control(const Socket& socket) {
  constexpr char kName[] = "bbr";
  return setsockopt(socket.get(), IPPROTO_TCP, TCP_CONGESTION, kName, sizeof(kName) - 1) == 0;
}

bool has_wide_area_control() {
  const Socket trial(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return trial && use_wide_area_control(trial);
}

std::vector<int> stages_to_try(bool has_wide_area_control) {
  if (has_wide_area_control) return {1, 16};
  return {1, 8, 32, 128};
}

void AroundPair::add(const std::vector<MeasuredStage>& pair) {
  for (std::size_t i = 0; i < bytes_per_second.size(); ++i) {
    bytes_per_second[i] += pair[std::min(i, pair.size() - 1)].bytes_per_second;
  }
}

int choose_sockets(const std::vector<MeasuredStage>& pair, const AroundPair& around,
                   bool has_wide_area_control) {
  const std::vector<int> tried = stages_to_try(has_wide_area_control);
  const auto is_worth_it = [&](std::size_t stage) {
    const double gain = pair[stage].bytes_per_second / pair[stage - 1].bytes_per_second;
    const double of_all = around.bytes_per_second[stage] / around.bytes_per_second[stage - 1];
    return gain > kLeastGain && (of_all > kLeastGain || gain > kCertainGain);
  };
  std::size_t best = 0;
  while (best + 1 < pair.size() && is_worth_it(best + 1)) ++best;
  if (best == 0) return 0;
  if (!has_wide_area_control && best + 1 < tried.size()) ++best;
  return tried[best];
}

std::optional<std::vector<MeasuredStage>> measure_pair(const Socket& first,
                                                       const std::vector<Socket>& sockets,
                                                       Seconds round_trip,
                                                       bool has_wide_area_control) {
  const auto time = std::clamp(kRoundTrips * round_trip, kShortestStage, kLongestStage);
  const std::vector<int> tried = stages_to_try(has_wide_area_control);
  std::vector<MeasuredStage> stages;
  Filler filler(sockets);
  for (const int count : tried) {
    // One connection is tried as the system has it.
    if (count > 1 && has_wide_area_control) {
      for (int i = 0; i < count; ++i) use_wide_area_control(sockets[static_cast<std::size_t>(i)]);
    }
    const auto rate = filler.run(static_cast<std::size_t>(count), time);
    const StageResult own{rate.value_or(-1.0)};
    StageResult other;
    if (!exchange(first, &own, &other, sizeof(own))) return std::nullopt;
    if (own.bytes_per_second < 0 || other.bytes_per_second < 0) return std::nullopt;
    stages.push_back({count, own.bytes_per_second + other.bytes_per_second});
    if (stages.size() > 1 &&
        stages.back().bytes_per_second < kLeastGain * stages[stages.size() - 2].bytes_per_second) {
      break;
    }
  }
  std::vector<std::uint64_t> expected(sockets.size());
  if (!exchange(first, filler.sent().data(), expected.data(),
                expected.size() * sizeof(expected[0])) ||
      !filler.drain(expected)) {
    return std::nullopt;
  }
  return stages;
}

}  // namespace heddle
