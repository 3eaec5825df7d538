#pragma once

#include <optional>

#include "comm/tcp/tcp_socket.h"

namespace heddle {

/// What the system says of a connection; seconds.
struct TcpInfo {
  double round_trip = 0.0;        ///< now
  double least_round_trip = 0.0;  ///< of all so far; 0: not known
  /// Bytes that the other side has, also those behind missing ones.
  std::optional<double> delivered;
};

/// Nothing where the system does not say.
std::optional<TcpInfo> tcp_info(const Socket& socket);

}  // namespace heddle
