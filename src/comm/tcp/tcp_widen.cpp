#include "comm/tcp/tcp_widen.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <future>
#include <map>
#include <mutex>

#include "base/error.h"
#include "base/log.h"
#include "comm/tcp/long_way.h"
#include "comm/tcp/tcp_callers.h"
#include "comm/tcp/tcp_measure.h"

namespace heddle {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr std::chrono::seconds kTimeToOpen{60};
constexpr std::size_t kOpenedAtOnce = 32;

/// From the higher of two ranks, which calls: what both do.
struct Width {
  std::uint32_t sockets = 0;  ///< more connections that will be opened
  std::uint32_t is_measured = 0;
  double round_trip = 0.0;
  std::uint32_t is_far = 0;
  std::uint32_t has_wide_area_control = 0;  ///< of the side that tells it
};

class Widener {
 public:
  Widener(const TcpPlace& place, JoinedRanks joined)
      : place_(place),
        hello_(own_hello(place.rank, place.size, 0)),
        callers_(std::move(joined.listening), hello_, place.token),
        links_(static_cast<std::size_t>(place.size)),
        widths_(static_cast<std::size_t>(place.size)) {
    for (std::size_t rank = 0; rank < links_.size(); ++rank) {
      links_[rank].socket = std::move(joined.sockets[rank]);
    }
  }

  std::vector<TcpLink> widen() {
    for (int lower = 0; lower < place_.rank; ++lower) propose(lower);
    for (int higher = place_.rank + 1; higher < place_.size; ++higher) answer(higher);
    for (int lower = 0; lower < place_.rank; ++lower) hear_answer(lower);
    std::vector<std::future<void>> opening;
    for (int lower = 0; lower < place_.rank; ++lower) {
      if (width(lower).sockets == 0) continue;
      opening.push_back(std::async(std::launch::async, [this, lower] { open(lower); }));
    }
    receive_calls();
    for (auto& one : opening) one.get();
    std::vector<std::future<void>> measuring;
    for (int other = 0; other < place_.size; ++other) {
      if (other == place_.rank || width(other).is_measured == 0) continue;
      measuring.push_back(std::async(std::launch::async, [this, other] { measure(other); }));
    }
    for (auto& one : measuring) one.get();
    choose();
    return std::move(links_);
  }

 private:
  TcpLink& link(int rank) { return links_[static_cast<std::size_t>(rank)]; }
  Width& width(int rank) { return widths_[static_cast<std::size_t>(rank)]; }

  [[noreturn]] static void throw_gone(int rank) {
    throw Error(ErrorCode::peer, fmt::format("rank {} went away while ranks were joining", rank));
  }

  void propose(int lower) {
    Width& wish = width(lower);
    wish.round_trip = round_trip(link(lower).socket).count();
    wish.is_far = wish.round_trip >= kLongRoundTrip ? 1 : 0;
    wish.has_wide_area_control = has_wide_area_control() ? 1 : 0;
    if (!write_bytes(link(lower).socket.get(), &wish, sizeof(wish))) throw_gone(lower);
  }

  void answer(int higher) {
    Width wish;
    if (!read_bytes(link(higher).socket.get(), &wish, sizeof(wish))) throw_gone(higher);
    wish.has_wide_area_control &= has_wide_area_control() ? 1U : 0U;
    wish.is_measured = wish.is_far != 0 && place_.sockets == 0 ? 1 : 0;
    wish.sockets = 0;
    if (wish.is_measured != 0) {
      wish.sockets =
          static_cast<std::uint32_t>(stages_to_try(wish.has_wide_area_control != 0).back());
    } else if (place_.sockets > 1) {
      wish.sockets = static_cast<std::uint32_t>(place_.sockets);
    }
    width(higher) = wish;
    link(higher).is_far = wish.is_far != 0;
    if (!write_bytes(link(higher).socket.get(), &wish, sizeof(wish))) throw_gone(higher);
  }

  void hear_answer(int lower) {
    Width& decided = width(lower);
    if (!read_bytes(link(lower).socket.get(), &decided, sizeof(decided))) throw_gone(lower);
    link(lower).is_far = decided.is_far != 0;
  }

  void open(int lower) {
    sockaddr_in at{};
    socklen_t length = sizeof(at);
    getpeername(link(lower).socket.get(), reinterpret_cast<sockaddr*>(&at), &length);
    const SocketAddress to{at.sin_addr.s_addr, at.sin_port};
    auto& stripes = link(lower).stripes;
    stripes.resize(width(lower).sockets);
    for (std::size_t begin = 0; begin < stripes.size(); begin += kOpenedAtOnce) {
      std::vector<std::future<void>> calls;
      for (std::size_t i = begin; i < std::min(begin + kOpenedAtOnce, stripes.size()); ++i) {
        calls.push_back(
            std::async(std::launch::async, [&, i] { stripes[i] = call(lower, to, i); }));
      }
      for (auto& one : calls) one.get();
    }
  }

  Socket call(int lower, const SocketAddress& to, std::size_t number) const {
    const auto until = Clock::now() + kTimeToOpen;
    const auto check_time = [&] {
      if (Clock::now() < until) return;
      throw Error(ErrorCode::peer,
                  fmt::format("rank {} could not open connection {} to rank {} at {}", place_.rank,
                              number + 2, lower, to.text()),
                  "allow several TCP connections between the machines, or set HEDDLE_SOCKETS=1");
    };
    Hello hello = hello_;
    hello.channel = static_cast<std::int32_t>(number) + 1;
    const std::string called = fmt::format("rank {} at {}", lower, to.text());
    for (;; check_time()) {
      Socket made = call_once(to, std::min(until, Clock::now() + std::chrono::seconds(5)));
      if (made && say_hello(made, hello, place_.token, called, check_time)) return made;
    }
  }

  /// Of those ranks that call this one.
  void receive_calls() {
    std::size_t missing = 0;
    for (int higher = place_.rank + 1; higher < place_.size; ++higher) {
      link(higher).stripes.resize(width(higher).sockets);
      missing += width(higher).sockets;
    }
    const auto until = Clock::now() + kTimeToOpen;
    while (missing > 0) {
      if (Clock::now() >= until) {
        throw Error(ErrorCode::peer,
                    fmt::format("{} connections to rank {} were not opened by far ranks", missing,
                                place_.rank),
                    "allow several TCP connections between the machines, or set HEDDLE_SOCKETS=1");
      }
      std::vector<pollfd> entries;
      callers_.add_to(entries);
      poll(entries.data(), entries.size(), 100);
      for (Callers::Guest& guest : callers_.take()) {
        const Hello& hello = guest.hello;
        if (guest.is_other_version || hello.rank <= place_.rank || hello.rank >= place_.size ||
            hello.channel < 1) {
          continue;  // a stranger
        }
        auto& stripes = link(hello.rank).stripes;
        const auto number = static_cast<std::size_t>(hello.channel) - 1;
        if (number >= stripes.size() || stripes[number]) continue;
        stripes[number] = std::move(guest.socket);
        --missing;
      }
    }
  }

  void measure(int other) {
    TcpLink& to = link(other);
    const Width& how = width(other);
    auto stages = measure_pair(to.socket, to.stripes, Seconds(how.round_trip),
                               how.has_wide_area_control != 0);
    if (!stages) throw_gone(other);
    const std::lock_guard lock(mutex_);
    measured_[other] = std::move(*stages);
  }

  /// Each rank tells others what all its pairs carried; of a pair, both know both sums then.
  void choose() {
    AroundPair own;
    for (const auto& [other, stages] : measured_) own.add(stages);
    for (const auto& [other, stages] : measured_) {
      if (!write_bytes(link(other).socket.get(), &own, sizeof(own))) throw_gone(other);
    }
    for (const auto& [other, stages] : measured_) {
      AroundPair both;
      if (!read_bytes(link(other).socket.get(), &both, sizeof(both))) throw_gone(other);
      for (std::size_t i = 0; i < AroundPair::kMostStages; ++i) {
        both.bytes_per_second[i] += own.bytes_per_second[i];
      }
      const int chosen = choose_sockets(stages, both, width(other).has_wide_area_control != 0);
      link(other).stripes.resize(static_cast<std::size_t>(chosen));
      if (place_.rank < other) tell(other, stages, chosen);  // the lower one says it
    }
  }

  void tell(int other, const std::vector<MeasuredStage>& stages, int chosen) {
    std::string rates;
    for (const MeasuredStage& stage : stages) {
      rates += fmt::format("{}{} with {}", rates.empty() ? "" : ", ",
                           fmt::format("{:.3g}", 8e-6 * stage.bytes_per_second / 2), stage.sockets);
    }
    log_info(
        "rank {} is {:.0f} ms from rank {}: {} Mbit/s each way ({})", place_.rank,
        1e3 * width(other).round_trip, other, rates,
        chosen == 0 ? "one connection will do" : fmt::format("{} share large messages", chosen));
  }

  const TcpPlace& place_;
  const Hello hello_;
  Callers callers_;
  std::vector<TcpLink> links_;
  std::vector<Width> widths_;
  std::mutex mutex_;
  std::map<int, std::vector<MeasuredStage>> measured_;  // by rank
};

}  // namespace

std::vector<TcpLink> widen_links(const TcpPlace& place, JoinedRanks joined) {
  return Widener(place, std::move(joined)).widen();
}

}  // namespace heddle
