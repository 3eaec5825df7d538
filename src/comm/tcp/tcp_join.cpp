#include "comm/tcp/tcp_join.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "comm/stopped_by_peer.h"
#include "comm/tcp/tcp_callers.h"
#include "comm/tcp/tcp_gathering.h"
#include "comm/tcp_listener.h"
#include "comm/waiting_line.h"

namespace heddle {

namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

/// A rank other than 0 while it joins.
class Joiner {
 public:
  Joiner(const TcpPlace& place, const JoinOptions& options)
      : place_(place),
        options_(options),
        first_{host_named(place.address), htons(place.port)},
        until_(end_after(0s)),
        own_(listen_on(0, place.size, reach_of(place))),
        hello_(own_hello(place.rank, place.size, own_.port, place.again.number)),
        callers_(Socket(own_.socket), hello_, place.token),
        sockets_(static_cast<std::size_t>(place.size)) {}

  JoinedRanks join() {
    do {
      call_first();
    } while (!wait_for_table());
    try {
      call_lower();
      wait_for_higher();
    } catch (const StoppedByPeer&) {
      throw;
    } catch (const Error& error) {
      if (options_.tell) options_.tell(error.what());
      say(Ready::failed);
      throw;
    }
    say(Ready::yes);
    if (wait_for_answer() != Answer::go) throw_first_gone();
    JoinedRanks joined{.listening = callers_.release()};
    for (int rank = 0; rank < place_.size; ++rank) {
      if (!takes_part(rank)) continue;
      joined.ranks.push_back(rank);
      joined.sockets.push_back(std::move(sockets_[static_cast<std::size_t>(rank)]));
    }
    return joined;
  }

 private:
  Socket& first() { return sockets_.front(); }
  /// Where the rank listens, by the table.
  Seat seat(int rank) const {
    Seat seat;
    std::memcpy(&seat, answer_.data() + static_cast<std::size_t>(rank) * sizeof(Seat),
                sizeof(Seat));
    return seat;
  }
  bool takes_part(int rank) const {
    return rank == 0 || rank == place_.rank || sockets_[static_cast<std::size_t>(rank)];
  }
  std::string first_text() const {
    return fmt::format("rank 0 at {} port {}", place_.address, place_.port);
  }

  Clock::time_point end_after(std::chrono::seconds more) const {
    if (options_.limit.count() <= 0) return Clock::now() + std::chrono::hours(24 * 365);
    return Clock::now() + std::chrono::duration_cast<Clock::duration>(options_.limit) + more;
  }

  void say(Ready ready) { write_bytes(first().get(), &ready, sizeof(ready)); }

  void call_first() {
    WaitingLine line(options_.limit, 30s);
    while (true) {
      first() = call_once(first_, std::min(until_, Clock::now() + 3s));
      const int problem = errno;
      const auto check_time = [&] {
        if (Clock::now() < until_) return;
        throw Error(ErrorCode::peer,
                    fmt::format("rank {} did not reach {} within {:.0f} s: {}", place_.rank,
                                first_text(), options_.limit.count(),
                                first() ? "it does not answer" : std::strerror(problem)),
                    place_.again.number > 0
                        ? "the others may have gone on without it; a restart of all ranks takes it "
                          "in again"
                        : "check that rank 0 was started, that MASTER_ADDR and MASTER_PORT are the "
                          "same on all ranks, and that TCP connections are allowed");
      };
      if (first() && say_hello(first(), hello_, place_.token, first_text(), check_time)) break;
      check_time();
      line.show(fmt::format("rank {} waits for {}", place_.rank, first_text()));
      std::this_thread::sleep_for(50ms);
    }
    // From here on rank 0 keeps the time; this is for one that no longer does anything.
    until_ = end_after(15s);
  }

  /// The kind of what rank 0 says next, its content in `answer_`; 0 when it is gone. Throws what it
  /// refuses with.
  std::uint32_t wait_for_answer() {
    WaitingLine line(options_.limit, 0s);  // rank 0 says it for all
    while (!is_readable(first().get(), Clock::now() + WaitingLine::kTick)) {
      if (Clock::now() >= until_) {
        throw Error(ErrorCode::peer, fmt::format("{} does not answer", first_text()));
      }
      line.show(fmt::format("rank {} waits with {} for the others", place_.rank, first_text()));
    }
    return read_answer();
  }

  std::uint32_t read_answer() {
    Answer answer;
    if (!read_bytes(first().get(), &answer, sizeof(answer))) return 0;
    answer_.resize(answer.bytes);
    if (!read_bytes(first().get(), answer_.data(), answer_.size())) return 0;
    if (answer.kind == Answer::refusal) throw StoppedByPeer(ErrorCode::peer, answer_, 0);
    if (answer.kind == Answer::left) {
      throw Error(ErrorCode::peer, fmt::format("{}: {}", first_text(), answer_));
    }
    if (answer.kind == Answer::stranger) {
      throw Error(ErrorCode::peer,
                  fmt::format("{} does not let this rank in: {}", first_text(), answer_),
                  kSameTokenHint);
    }
    return answer.kind;
  }

  [[noreturn]] void throw_first_gone() const {
    throw Error(ErrorCode::peer,
                fmt::format("{} ended while the ranks were joining", first_text()));
  }

  /// False when rank 0 has gone away instead.
  bool wait_for_table() {
    if (wait_for_answer() == Answer::table && answer_.size() == sockets_.size() * sizeof(Seat)) {
      return true;
    }
    log_line(LogLevel::warn, fmt::format("{} went away before all ranks were there; rank {} calls "
                                         "it again",
                                         first_text(), place_.rank));
    std::this_thread::sleep_for(500ms);
    until_ = end_after(0s);
    return false;
  }

  /// Whoever is in the table listens: one that does not answer any more is gone, and rank 0 will
  /// say so.
  void call_lower() {
    for (int lower = 1; lower < place_.rank; ++lower) {
      const auto [host, port] = seat(lower);
      if (port == 0) continue;
      const SocketAddress to{host == 0 ? first_.host : host, static_cast<std::uint16_t>(port)};
      const auto until = std::min(until_, Clock::now() + 30s);
      Socket& made = sockets_[static_cast<std::size_t>(lower)];
      while (!(made = call_once(to, until, first().get()))) {
        const int problem = errno;
        if (is_readable(first().get(), Clock::now() + 100ms) && read_answer() == 0) {
          throw_first_gone();
        }
        if (Clock::now() >= until) {
          throw Error(ErrorCode::peer,
                      fmt::format("rank {} does not reach rank {} at {}: {}", place_.rank, lower,
                                  to.text(), std::strerror(problem)),
                      "allow TCP connections between the machines");
        }
      }
      say_hello(made, hello_, place_.token, fmt::format("rank {} at {}", lower, to.text()), [&] {
        if (is_readable(first().get(), Clock::now()) && read_answer() == 0) throw_first_gone();
        if (Clock::now() < until) return;
        throw Error(ErrorCode::peer, fmt::format("rank {} at {} does not answer rank {}", lower,
                                                 to.text(), place_.rank));
      });
    }
  }

  void wait_for_higher() {
    int missing = 0;
    for (int higher = place_.rank + 1; higher < place_.size; ++higher) {
      if (seat(higher).port != 0) ++missing;
    }
    while (missing > 0) {
      if (is_readable(first().get(), Clock::now()) && read_answer() == 0) throw_first_gone();
      if (Clock::now() >= until_) {
        throw Error(ErrorCode::peer,
                    fmt::format("rank {} was not called by {} higher ranks", place_.rank, missing));
      }
      std::vector<pollfd> entries;
      callers_.add_to(entries);
      poll(entries.data(), entries.size(), 100);
      for (Callers::Guest& guest : callers_.take()) {
        if (guest.is_other_version || guest.hello.channel != 0 || guest.hello.rank <= place_.rank ||
            guest.hello.rank >= place_.size) {
          continue;  // a stranger
        }
        Socket& seat = sockets_[static_cast<std::size_t>(guest.hello.rank)];
        if (seat) continue;
        seat = std::move(guest.socket);
        --missing;
      }
    }
  }

  const TcpPlace& place_;
  const JoinOptions& options_;
  const SocketAddress first_;
  Clock::time_point until_;
  const TcpListener own_;
  const Hello hello_;
  Callers callers_;
  std::vector<Socket> sockets_;
  std::string answer_;
};

}  // namespace

TcpReach reach_of(const TcpPlace& place) {
  const bool is_local = place.address == "localhost" || place.address.starts_with("127.");
  return is_local ? TcpReach::this_machine : TcpReach::everybody;
}

JoinedRanks join_ranks(const TcpPlace& place, const JoinOptions& options) {
  if (place.rank == 0) return Gathering(place, options).gather();
  return Joiner(place, options).join();
}

}  // namespace heddle
