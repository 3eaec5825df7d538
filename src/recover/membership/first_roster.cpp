#include "recover/membership/first_roster.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "base/error.h"
#include "recover/membership/note_wire.h"

namespace heddle::recover {
namespace {

using Clock = std::chrono::steady_clock;

class Meeting {
 public:
  Meeting(const TcpPlace& place, const JoinedRanks& joined, std::uint16_t port,
          std::chrono::duration<double> limit)
      : place_(place),
        joined_(joined),
        limit_(limit),
        until_(limit.count() > 0 ? Clock::now() + std::chrono::duration_cast<Clock::duration>(limit)
                                 : Clock::time_point::max()),
        self_{.id = random_number(), .port = htons(port)} {}

  FirstRoster agree() {
    Note all = place_.rank == 0 ? gather() : hear();
    return {.run = all.run, .roster = {.epoch = 0, .step = 0, .members = std::move(all.members)}};
  }

 private:
  Note gather() {
    self_.host = own_host();
    Note all{.kind = Note::Kind::decided, .run = random_number(), .members = {self_}};
    for (std::size_t rank = 1; rank < joined_.sockets.size(); ++rank) {
      Member member = read(rank).from;
      const std::uint32_t seen = address_of(joined_.sockets[rank].get(), getpeername).host;
      member.host = is_loopback(seen) ? self_.host : seen;
      all.members.push_back(member);
    }
    all.from = self_;
    for (std::size_t rank = 1; rank < joined_.sockets.size(); ++rank) write(rank, all);
    return all;
  }

  /// Of rank 0. What its name means to itself others may not be able to call (127.0.1.1 in Debian's
  /// /etc/hosts): what they have called counts, where one of them is on another machine.
  std::uint32_t own_host() const {
    for (std::size_t rank = 1; rank < joined_.sockets.size(); ++rank) {
      const int socket = joined_.sockets[rank].get();
      if (is_loopback(address_of(socket, getpeername).host)) continue;
      return address_of(socket, getsockname).host;
    }
    return host_named(place_.address);
  }

  Note hear() {
    write(0, {.kind = Note::Kind::join, .from = self_});
    Note all = read(0);
    if (all.kind != Note::Kind::decided || all.members.size() != joined_.sockets.size()) gone(0);
    return all;
  }

  void write(std::size_t rank, const Note& note) const {
    const auto bytes = seal(note, place_.token);
    if (!write_bytes(joined_.sockets[rank].get(), bytes.data(), bytes.size())) gone(rank);
  }

  Note read(std::size_t rank) const {
    const int socket = joined_.sockets[rank].get();
    wait_for(rank, socket);
    std::vector<std::byte> bytes(kFrameBytes);
    if (!read_bytes(socket, bytes.data(), bytes.size())) gone(rank);
    const auto whole = sealed_bytes(kNoteKind, std::span(bytes).first<kFrameBytes>());
    if (!whole) throw whole.error();
    bytes.resize(*whole);
    if (!read_bytes(socket, bytes.data() + kFrameBytes, bytes.size() - kFrameBytes)) gone(rank);
    return open(bytes, place_.token).value();
  }

  /// A frozen one would keep all others: nobody looks for silent ranks yet.
  void wait_for(std::size_t rank, int socket) const {
    while (!is_readable(socket, until_)) {
      if (Clock::now() < until_) continue;
      fail(ErrorCode::peer, "rank {} has said nothing for {:.0f} s while ranks were joining", rank,
           limit_.count());
    }
  }

  [[noreturn]] static void gone(std::size_t rank) {
    fail(ErrorCode::peer, "rank {} went away while ranks were joining", rank);
  }

  const TcpPlace& place_;
  const JoinedRanks& joined_;
  const std::chrono::duration<double> limit_;
  const Clock::time_point until_;
  Member self_;
};

}  // namespace

std::uint64_t random_number() {
  const Nonce nonce = make_nonce();
  std::uint64_t number = 0;
  std::memcpy(&number, nonce.data(), sizeof(number));
  return std::max<std::uint64_t>(number, 1);
}

SocketAddress address_of(int socket, decltype(getsockname) ask) {
  sockaddr_in address{};
  socklen_t length = sizeof(address);
  ask(socket, reinterpret_cast<sockaddr*>(&address), &length);
  return {address.sin_addr.s_addr, address.sin_port};
}

bool is_loopback(std::uint32_t host) { return (ntohl(host) >> 24) == 127; }

FirstRoster agree_on_first(const TcpPlace& place, const JoinedRanks& joined, std::uint16_t port,
                           std::chrono::duration<double> limit) {
  return Meeting(place, joined, port, limit).agree();
}

}  // namespace heddle::recover
