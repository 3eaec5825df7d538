#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/comm_backend.h"
#include "comm/flight_recorder.h"
#include "comm/tcp/tcp_join.h"
#include "comm/tcp/tcp_links.h"
#include "comm/watchdog.h"
#include "comm/world.h"

namespace heddle {

/// What one rank's world consists of, over connections that are there.
struct TcpWorld {
  TcpWorld(int rank, std::vector<TcpLink> connections, TcpCare care = {});

  /// The group of all ranks. `stop_world` makes all of them fail with a reason.
  std::shared_ptr<CommBackend> all(std::function<void(const std::string& reason)> stop_world) const;

  const std::shared_ptr<WorldFailure> failure;
  const std::shared_ptr<FlightRecorder> flight;
  const std::shared_ptr<TcpLinks> links;
};

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
