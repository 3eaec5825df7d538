#include "comm/tcp/tcp_gathering.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "comm/stopped_by_peer.h"
#include "comm/tcp_listener.h"

namespace heddle {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

/// For what is left to do once all are there.
constexpr auto kTimeToConnect = 40s;

Clock::time_point end_of(std::chrono::duration<double> limit) {
  if (limit.count() <= 0) return Clock::time_point::max();
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(limit);
}

/// A machine calls itself by an address that others cannot use.
bool is_own_machine(std::uint32_t host) { return (ntohl(host) >> 24) == 127; }

}  // namespace

Gathering::Gathering(const TcpPlace& place, const JoinOptions& options)
    : place_(place),
      options_(options),
      own_(own_hello(0, place.size, place.port, place.again.number)),
      callers_(
          Socket(place.listening >= 0 ? place.listening
                                      : listen_on(place.port, place.size, reach_of(place)).socket),
          own_, place.token),
      until_(end_of(options.limit)),
      line_(options.limit, 5s),
      members_(static_cast<std::size_t>(place.size)) {
  if (place.token || reach_of(place) == TcpReach::this_machine) return;
  log_warn(
      "no token: whoever reaches port {} of {} can join this run; HEDDLE_TOKEN_FILE keeps "
      "strangers out",
      place.port, place.address);
}

JoinedRanks Gathering::gather() {
  wait_for_all();
  hand_out_table();
  wait_until_ready();
  JoinedRanks joined{.listening = callers_.release()};
  for (int rank = 0; rank < place_.size; ++rank) {
    Socket& socket = member(rank).socket;
    if (rank > 0 && !socket) continue;
    if (socket) send_answer(socket, Answer::go, nullptr, 0);
    joined.ranks.push_back(rank);
    joined.sockets.push_back(std::move(socket));
  }
  return joined;
}

std::vector<int> Gathering::missing() const {
  std::vector<int> ranks;
  for (int rank = 1; rank < place_.size; ++rank) {
    if (!members_[static_cast<std::size_t>(rank)].socket) ranks.push_back(rank);
  }
  return ranks;
}

bool Gathering::belongs_to(int rank, const std::vector<int>& ranks) const {
  const int together = place_.again.together;
  return std::ranges::any_of(ranks, [&](int other) { return other / together == rank / together; });
}

std::vector<int> Gathering::awaited() const {
  std::vector<int> ranks = missing();
  if (is_again()) {
    std::erase_if(ranks, [&](int rank) { return belongs_to(rank, place_.again.lost); });
  }
  return ranks;
}

void Gathering::send_left(const Socket& to, const std::string& text) const {
  send_answer(to, Answer::left, text.data(), text.size());
  shutdown(to.get(), SHUT_WR);
}

void Gathering::leave_incomplete() {
  const std::vector<int> absent = missing();
  if (belongs_to(0, absent)) {
    fail_all(
        fmt::format("rank{} {} did not come again within {:.0f} s, without which rank 0 cannot "
                    "go on, where all meet",
                    absent.size() == 1 ? "" : "s", rank_list(absent), options_.limit.count()),
        "start the run again: it goes on from the newest checkpoint");
  }
  for (int rank = 1; rank < place_.size; ++rank) {
    Member& one = member(rank);
    if (!one.socket || !belongs_to(rank, absent)) continue;
    send_left(one.socket,
              fmt::format("rank {} is there, but not all that it goes on with (of rank{} {}); the "
                          "others go on without it",
                          rank, absent.size() == 1 ? "" : "s", rank_list(absent)));
    one = Member();
  }
}

void Gathering::wait_for_all() {
  for (auto absent = awaited(); !absent.empty(); absent = awaited()) {
    const std::string names =
        fmt::format("rank{} {}", absent.size() == 1 ? "" : "s", rank_list(absent));
    if (Clock::now() >= until_ && is_again()) break;
    if (Clock::now() >= until_) {
      const std::string strangers = callers_.refused() == 0
                                        ? ""
                                        : fmt::format("; {} caller{} sent away", callers_.refused(),
                                                      callers_.refused() == 1 ? " was" : "s were");
      fail_all(fmt::format("{} of {} did not come to port {} within {:.0f} s{}", names, place_.size,
                           place_.port, options_.limit.count(), strangers),
               "check that every rank was started, with the same MASTER_ADDR and MASTER_PORT, and "
               "did not fail itself; run.timeout says how long a training run waits");
    }
    line_.show(fmt::format("waiting for {} of {} on port {}", names, place_.size, place_.port));
    wait_for_news();
    notice_gone();
    for (Callers::Guest& guest : callers_.take()) admit(guest);
  }
  if (is_again()) return leave_incomplete();
  if (line_.has_shown()) {
    log_info("all {} ranks are here after {:.0f} s", place_.size, line_.seconds());
  }
}

void Gathering::wait_for_news() {
  std::vector<pollfd> entries;
  callers_.add_to(entries);
  for (const Member& member : members_) {
    entries.push_back({.fd = member.socket.get(), .events = POLLIN, .revents = 0});  // -1 is passed
  }
  const auto until = std::min(until_, Clock::now() + WaitingLine::kTick);
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
  poll(entries.data(), entries.size(), static_cast<int>(std::max<std::int64_t>(0, left.count())));
}

void Gathering::notice_gone() {
  for (int rank = 1; rank < place_.size; ++rank) {
    Member& one = member(rank);
    char byte = 0;
    if (!one.socket || recv(one.socket.get(), &byte, 1, MSG_DONTWAIT) != 0) continue;
    log_warn("rank {} ({}) went away before all ranks were there; it may come again", rank,
             one.hello.who());
    one = Member();
  }
}

void Gathering::admit(Callers::Guest& guest) {
  const Hello& hello = guest.hello;
  if (guest.is_other_version) {
    fail_all(fmt::format("a rank on {} is another version of heddle than rank 0 ({})",
                         guest.from.host_text(), own_.who()),
             "run the same program on all machines", &guest.socket);
  }
  if (hello.meeting != place_.again.number) {
    return send_left(guest.socket,
                     is_again()
                         ? "this run has lost ranks since, and the others go on without them; "
                           "a restart of all ranks takes them in again"
                         : "this run begins anew, and knows nothing of the one that this "
                           "rank was of; start this rank again too");
  }
  if (hello.size != place_.size) {
    fail_all(fmt::format("rank {} ({}) was started as one of {} ranks, rank 0 ({}) as one of {}",
                         hello.rank, hello.who(), hello.size, own_.who(), place_.size),
             "give all ranks the same WORLD_SIZE, and every run a MASTER_PORT of its own",
             &guest.socket);
  }
  const bool is_rank = hello.rank >= 0 && hello.rank < place_.size;
  if (!is_rank || hello.rank == 0 || member(hello.rank).socket) {
    const Hello& other = is_rank && hello.rank > 0 ? member(hello.rank).hello : own_;
    fail_all(is_rank ? fmt::format("two processes say that they are rank {}: {} and {}", hello.rank,
                                   other.who(), hello.who())
                     : fmt::format("{} says that it is rank {} of {}", hello.who(), hello.rank,
                                   place_.size),
             "give every process a RANK of its own, counted from 0, and every run a MASTER_PORT of "
             "its own",
             &guest.socket);
  }
  Member& one = member(hello.rank);
  one.hello = hello;
  one.seat = {is_own_machine(guest.from.host) ? 0 : guest.from.host, hello.port};
  one.socket = std::move(guest.socket);
}

void Gathering::hand_out_table() {
  std::vector<Seat> table;
  for (const Member& member : members_) table.push_back(member.seat);
  for (const Member& member : members_) {
    if (!member.socket) continue;
    send_answer(member.socket, Answer::table, table.data(), table.size() * sizeof(Seat));
  }
}

void Gathering::wait_until_ready() {
  const auto until = Clock::now() + kTimeToConnect;
  const auto is_waiting = [](const Member& one) { return one.socket && !one.is_ready; };
  while (std::any_of(members_.begin(), members_.end(), is_waiting)) {
    wait_for_news();
    for (int rank = 1; rank < place_.size; ++rank) {
      Member& one = member(rank);
      Ready ready{};
      if (!is_waiting(one)) continue;
      const auto got = recv(one.socket.get(), &ready, sizeof(ready), MSG_DONTWAIT);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (got == 1 && ready == Ready::failed) {
        fail_all(fmt::format("rank {} could not join", rank), "", nullptr, rank);
      }
      if (got != 1) {
        fail_all(
            fmt::format("rank {} ({}) ended while the ranks were joining", rank, one.hello.who()),
            "");
      }
      one.is_ready = true;
    }
    if (Clock::now() >= until) {
      std::vector<int> late;
      for (int rank = 1; rank < place_.size; ++rank) {
        if (is_waiting(member(rank))) late.push_back(rank);
      }
      fail_all(fmt::format("rank{} {} did not connect to all others", late.size() == 1 ? "" : "s",
                           rank_list(late)),
               "allow TCP connections between the machines");
    }
  }
}

/// What was sent would be lost if a connection were closed before all that came over it was read.
void Gathering::let_them_read() {
  const auto until = Clock::now() + 1s;
  for (const Member& member : members_) {
    if (!member.socket) continue;
    shutdown(member.socket.get(), SHUT_WR);
    for (char byte = 0; is_readable(member.socket.get(), until);) {
      if (recv(member.socket.get(), &byte, 1, MSG_DONTWAIT) <= 0) break;
    }
  }
}

void Gathering::fail_all(const std::string& text, const std::string& hint, const Socket* caller,
                         int teller) {
  const Error error(ErrorCode::peer, text, hint);
  if (teller == 0 && options_.tell) options_.tell(error.what());
  for (const Member& member : members_) {
    if (member.socket) send_answer(member.socket, Answer::refusal, text.data(), text.size());
  }
  if (caller != nullptr) send_answer(*caller, Answer::refusal, text.data(), text.size());
  let_them_read();
  if (teller != 0) throw StoppedByPeer(ErrorCode::peer, text, teller);
  throw error;
}

}  // namespace heddle
