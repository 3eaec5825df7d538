#include "comm/tcp/tcp_stripes.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"

namespace heddle {
namespace {

constexpr std::uint64_t kPieceMagic = 0x6563656970e1dd48ULL;
/// Small: the end of a message waits for the slowest connection's last piece.
constexpr std::size_t kPieceBytes = 16 << 10;
/// What a connection takes beyond what it has sent, for the same reason.
constexpr int kUnsentOfStripe = 16 << 10;

}  // namespace

TcpStripes::TcpStripes(std::vector<Socket> sockets)
    : sockets_(std::move(sockets)),
      pacing_(sockets_),
      announced_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (!announced_) fail(ErrorCode::resources, "no event for connections between ranks");
  for (const Socket& socket : sockets_) {
    const int on = 1;
    setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(socket.get(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kUnsentOfStripe,
               sizeof(kUnsentOfStripe));
  }
}

TcpStripes::~TcpStripes() = default;

void TcpStripes::announce() noexcept {
  const std::uint64_t one = 1;
  static_cast<void>(!::write(announced_.get(), &one, sizeof(one)));
}

void TcpStripes::shut() noexcept {
  is_shut_ = true;
  for (const Socket& socket : sockets_) shutdown(socket.get(), SHUT_RDWR);
  announce();
}

TcpStripes::Progress TcpStripes::write_piece(int socket, Outgoing& piece,
                                             const std::byte* data) const {
  const std::size_t of_header = std::min(piece.written, sizeof(Header));
  const std::size_t of_data = piece.written - of_header;
  const auto put = write_some(socket, reinterpret_cast<const std::byte*>(&piece.header) + of_header,
                              sizeof(Header) - of_header, data + piece.header.offset + of_data,
                              piece.header.bytes - of_data);
  if (put < 0) return errno == EAGAIN || errno == EINTR ? Progress::waits : Progress::gone;
  piece.written += static_cast<std::size_t>(put);
  return piece.written == sizeof(Header) + piece.header.bytes ? Progress::all : Progress::waits;
}

bool TcpStripes::write(std::uint64_t number, const std::byte* data, std::size_t bytes) {
  std::vector<Outgoing> pieces(sockets_.size());
  std::vector<pollfd> entries;
  for (const Socket& socket : sockets_) {
    entries.push_back({.fd = socket.get(), .events = POLLOUT, .revents = 0});
  }
  std::size_t next = 0, busy = 0;
  pacing_.begin();
  while (next < bytes || busy > 0) {
    pacing_.look();
    for (std::size_t i = 0; i < entries.size(); ++i) {
      entries[i].fd = pieces[i].is_busy || next < bytes ? sockets_[i].get() : -1;
    }
    if (poll(entries.data(), entries.size(), -1) < 0 && errno != EINTR) return false;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].revents == 0) continue;
      if (!pieces[i].is_busy) {
        if (next == bytes) continue;
        const std::size_t length = std::min(kPieceBytes, bytes - next);
        pieces[i] = {.header = {kPieceMagic, number, next, length}, .is_busy = true};
        next += length;
        ++busy;
      }
      const Progress progress = write_piece(entries[i].fd, pieces[i], data);
      if (progress == Progress::gone) return false;
      if (progress != Progress::all) continue;
      pieces[i].is_busy = false;
      --busy;
    }
  }
  return true;
}

TcpStripes::Progress TcpStripes::read_pieces(
    int socket, Incoming& piece, const std::function<Place(std::uint64_t)>& place_of,
    const std::function<void(std::uint64_t, std::size_t)>& has_arrived) const {
  for (;;) {
    const bool is_header = piece.read < sizeof(Header);
    if (!is_header && piece.to == nullptr) {
      const Place place = place_of(piece.header.number);
      if (place.data == nullptr) return Progress::held;
      if (piece.header.offset > place.bytes ||
          piece.header.bytes > place.bytes - piece.header.offset) {
        return Progress::gone;
      }
      piece.to = place.data + piece.header.offset;
    }
    const std::size_t of_data = is_header ? 0 : piece.read - sizeof(Header);
    auto* const to =
        is_header ? reinterpret_cast<std::byte*>(&piece.header) + piece.read : piece.to + of_data;
    const std::size_t left = is_header ? sizeof(Header) - piece.read : piece.header.bytes - of_data;
    const auto got = recv(socket, to, left, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return Progress::waits;
    if (got <= 0) return Progress::gone;
    piece.read += static_cast<std::size_t>(got);
    if (static_cast<std::size_t>(got) < left) continue;
    if (is_header) {
      if (piece.header.magic != kPieceMagic || piece.header.bytes == 0) return Progress::gone;
    } else {
      has_arrived(piece.header.number, piece.header.bytes);
      piece = {};
    }
  }
}

void TcpStripes::read(
    const std::function<Place(std::uint64_t number)>& place_of,
    const std::function<void(std::uint64_t number, std::size_t bytes)>& has_arrived) {
  std::vector<Incoming> pieces(sockets_.size());
  std::vector<pollfd> entries;
  for (const Socket& socket : sockets_) {
    entries.push_back({.fd = socket.get(), .events = POLLIN, .revents = 0});
  }
  entries.push_back({.fd = announced_.get(), .events = POLLIN, .revents = 0});
  while (!is_shut_) {
    if (poll(entries.data(), entries.size(), -1) < 0 && errno != EINTR) return;
    if (entries.back().revents != 0) {
      std::uint64_t count = 0;
      static_cast<void>(!::read(announced_.get(), &count, sizeof(count)));
    }
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      // One that is held has its data and waits for the announcement.
      const bool is_held = entries[i].fd < 0;
      if (is_held ? entries.back().revents == 0 : entries[i].revents == 0) continue;
      const Progress progress = read_pieces(sockets_[i].get(), pieces[i], place_of, has_arrived);
      if (progress == Progress::gone) return;
      entries[i].fd = progress == Progress::held ? -1 : sockets_[i].get();
      entries[i].revents = 0;
    }
  }
}

}  // namespace heddle
