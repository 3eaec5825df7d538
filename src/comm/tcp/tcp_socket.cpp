#include "comm/tcp/tcp_socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"

namespace heddle {
namespace {

using Clock = std::chrono::steady_clock;

int milliseconds_until(Clock::time_point until) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 3'600'000));
}

/// A connection from a port to itself is what connect() makes where nobody listens yet on a port
/// that the system then happens to give to the caller.
bool is_to_itself(int socket) {
  sockaddr_in own{}, other{};
  socklen_t own_length = sizeof(own), other_length = sizeof(other);
  return getsockname(socket, reinterpret_cast<sockaddr*>(&own), &own_length) == 0 &&
         getpeername(socket, reinterpret_cast<sockaddr*>(&other), &other_length) == 0 &&
         own.sin_port == other.sin_port && own.sin_addr.s_addr == other.sin_addr.s_addr;
}

}  // namespace

Socket::~Socket() {
  if (descriptor_ >= 0) close(descriptor_);
}

Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

std::string SocketAddress::host_text() const {
  char text[INET_ADDRSTRLEN] = {};
  in_addr address{};
  address.s_addr = host;
  inet_ntop(AF_INET, &address, text, sizeof(text));
  return text;
}

std::string SocketAddress::text() const { return fmt::format("{}:{}", host_text(), ntohs(port)); }

std::uint32_t host_named(const std::string& name) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_family = AF_INET;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(name.c_str(), nullptr, &hints, &found) != 0 || found == nullptr) {
    throw Error(ErrorCode::peer, fmt::format("there is no machine named \"{}\"", name),
                "set MASTER_ADDR to a name or address of rank 0's machine that all ranks know");
  }
  const auto address = reinterpret_cast<const sockaddr_in*>(found->ai_addr)->sin_addr.s_addr;
  freeaddrinfo(found);
  return address;
}

Socket call_once(const SocketAddress& to, Clock::time_point until, int watched) {
  Socket made(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made) return Socket();
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = to.host;
  address.sin_port = to.port;
  if (connect(made.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    if (errno != EINPROGRESS) return Socket();
    pollfd entries[] = {{.fd = made.get(), .events = POLLOUT, .revents = 0},
                        {.fd = watched, .events = POLLIN, .revents = 0}};
    if (poll(entries, 2, milliseconds_until(until)) <= 0 || entries[0].revents == 0) {
      errno = ETIMEDOUT;
      return Socket();
    }
    int error = 0;
    socklen_t length = sizeof(error);
    getsockopt(made.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) {
      errno = error;
      return Socket();
    }
  }
  if (is_to_itself(made.get())) {
    errno = ECONNREFUSED;
    return Socket();
  }
  fcntl(made.get(), F_SETFL, fcntl(made.get(), F_GETFL) & ~O_NONBLOCK);
  return made;
}

bool is_readable(int socket, Clock::time_point until) {
  pollfd entry{.fd = socket, .events = POLLIN, .revents = 0};
  return poll(&entry, 1, milliseconds_until(until)) == 1;
}

bool read_bytes(int socket, void* to, std::size_t bytes) {
  // Packets come one by one where nobody puts them together. Waking up for each would take a part
  // of a core, so of much a good deal is waited for: by poll, since a recv that has taken a little
  // would go on to wait for a good deal beside it, which is more than may still come. The wait has
  // an end, since the kernel may have no room for a good deal.
  constexpr std::size_t kMuch = 256 << 10, kGoodDeal = 64 << 10;
  constexpr int kPatienceMs = 20;
  const auto wake_for = [socket](std::size_t least) {
    const int value = static_cast<int>(least);
    setsockopt(socket, SOL_SOCKET, SO_RCVLOWAT, &value, sizeof(value));
  };
  bool waits_for_much = bytes >= kMuch;
  if (waits_for_much) wake_for(kGoodDeal);
  auto* at = static_cast<std::byte*>(to);
  while (bytes > 0) {
    if (waits_for_much && bytes < kGoodDeal) {
      waits_for_much = false;
      wake_for(1);
    }
    if (waits_for_much) {
      pollfd entry{.fd = socket, .events = POLLIN, .revents = 0};
      poll(&entry, 1, kPatienceMs);
    }
    const auto got = ::recv(socket, at, bytes, waits_for_much ? MSG_DONTWAIT : 0);
    if (got < 0 && (errno == EINTR || (waits_for_much && errno == EAGAIN))) continue;
    if (got <= 0) return false;
    at += got;
    bytes -= static_cast<std::size_t>(got);
  }
  if (waits_for_much) wake_for(1);
  return true;
}

bool write_bytes(int socket, const void* from, std::size_t bytes) {
  const auto* at = static_cast<const std::byte*>(from);
  while (bytes > 0) {
    const auto put = ::send(socket, at, bytes, MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    at += put;
    bytes -= static_cast<std::size_t>(put);
  }
  return true;
}

std::ptrdiff_t write_some(int socket, const void* first, std::size_t first_bytes,
                          const void* second, std::size_t second_bytes) {
  iovec parts[] = {{const_cast<void*>(first), first_bytes},
                   {const_cast<void*>(second), second_bytes}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  return ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace heddle
