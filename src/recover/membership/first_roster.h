#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstdint>

#include "comm/tcp/tcp_join.h"
#include "recover/membership/note.h"

namespace heddle::recover {

/// Of runs and members; never 0.
std::uint64_t random_number();

/// The address of one end of a connection: `ask` is getsockname or getpeername.
SocketAddress address_of(int socket, decltype(getsockname) ask);
/// One by which a machine calls itself, and others cannot.
bool is_loopback(std::uint32_t host);

struct FirstRoster {
  std::uint64_t run = 0;
  Roster roster = {};  ///< by rank
};
/// Those who have joined as ranks of a world become the first members of a run: rank 0 hears at
/// which ports they can be called (`port`, in host order) and says who all are. All call it at the
/// same time. Error(peer) where one goes away meanwhile, or says nothing for `limit` (0: for ever).
FirstRoster agree_on_first(const TcpPlace& place, const JoinedRanks& joined, std::uint16_t port,
                           std::chrono::duration<double> limit);

}  // namespace heddle::recover
