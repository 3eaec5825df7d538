#include "comm/tcp_listener.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace heddle {
namespace {

/// Callers that the system keeps until they are heard: some may be strangers.
constexpr int kLeastWaiting = 128;

}  // namespace

TcpListener listen_on(std::uint16_t port, int callers, TcpReach reach) {
  const int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (reach == TcpReach::this_machine) address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof(address);
  if (made < 0 || setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      bind(made, generic, length) != 0 || listen(made, std::max(callers, kLeastWaiting)) != 0 ||
      getsockname(made, generic, &length) != 0) {
    throw Error(ErrorCode::peer,
                fmt::format("listening on port {}: {}", port, std::strerror(errno)),
                port == 0 ? "allow TCP connections on this machine"
                          : "take another MASTER_PORT, or end what listens there");
  }
  return {made, ntohs(address.sin_port)};
}

}  // namespace heddle
