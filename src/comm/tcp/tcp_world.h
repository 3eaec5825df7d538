#pragma once

#include <functional>
#include <vector>

#include "comm/tcp/tcp_join.h"
#include "comm/watchdog.h"
#include "comm/world.h"

namespace heddle {

/// Runs `body` as one rank of a world of processes that find each other by address and port, as
/// torchrun's variables say, or as we start them ourselves. When it fails, the other ranks stop
/// with "rank N stopped: why"; when another failed, throws StoppedByPeer with that reason
/// (RanksLost where that is it), or, from within a call that does not return, ends the process (see
/// MpiMonitor). Error(peer) when the ranks do not find each other (see join_ranks). Where ranks
/// meet again without some, the world has those who came, numbered anew; `met` is given their
/// numbers in `place` before `body` is called.
void run_tcp_rank(const TcpPlace& place, const std::function<void(World&)>& body,
                  WatchdogOptions watch = {},
                  const std::function<void(const std::vector<int>& ranks)>& met = {});

}  // namespace heddle
