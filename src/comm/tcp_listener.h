#pragma once

#include <cstdint>

namespace heddle {

struct TcpListener {
  int socket = -1;  ///< the caller's to close
  std::uint16_t port = 0;
};

/// Who can call.
enum class TcpReach { everybody, this_machine };

/// Listens on a port of all addresses of this machine (or of the local one), or on one that is free
/// when it is 0. Error(peer) when it is taken.
TcpListener listen_on(std::uint16_t port, int callers, TcpReach reach = TcpReach::everybody);

}  // namespace heddle
