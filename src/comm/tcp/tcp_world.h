#pragma once

#include <functional>

#include "comm/tcp/tcp_join.h"
#include "comm/watchdog.h"
#include "comm/world.h"

namespace heddle {

/// Runs `body` as one rank of a world of processes that find each other by address and port, as
/// torchrun's variables say, or as we start them ourselves. When it fails, the other ranks stop
/// with "rank N stopped: why"; when another failed, throws StoppedByPeer with that reason, or, from
/// within a call that does not return, ends the process (see MpiMonitor). Error(peer) when the
/// ranks do not find each other (see join_ranks).
void run_tcp_rank(const TcpPlace& place, const std::function<void(World&)>& body,
                  WatchdogOptions watch = {});

}  // namespace heddle
