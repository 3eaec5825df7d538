#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/tcp/tcp_socket.h"
#include "comm/tcp/tcp_token.h"
#include "comm/tcp_listener.h"

namespace heddle {

/// How ranks of a world that has lost some meet again.
struct MeetingAgain {
  int number = 0;              ///< how often they have met before; 0: all have to come
  int together = 1;            ///< so many neighbouring ranks go on together or not at all
  std::vector<int> lost = {};  ///< nobody waits for these and those that belong to them
};

/// Where the ranks of a world find each other: a port on the machine of rank 0.
struct TcpPlace {
  int rank = 0, size = 1;
  std::string address = "127.0.0.1";
  std::uint16_t port = 0;
  int listening = -1;  ///< rank 0's socket, where whoever started it listens on the port already
  Token token = {};    ///< no rank gets in that does not know it
  int sockets = 0;     ///< connections that share large messages to a rank; 0: by measurement
  MeetingAgain again = {};
};

struct JoinOptions {
  std::chrono::duration<double> limit{120};  ///< how long ranks may take to come; 0: for ever
  /// Says to the user why joining fails, before other ranks are told and end. May be absent.
  std::function<void(const std::string& text)> tell = {};
};

/// Only from this machine can ranks be called whose rank 0 is named by a local address.
TcpReach reach_of(const TcpPlace& place);

struct JoinedRanks {
  std::vector<int> ranks = {};       ///< who takes part, by the numbers that they came with
  std::vector<Socket> sockets = {};  ///< to each of them; this rank's own is empty
  Socket listening = {};             ///< where this rank can be called again
};

/// A connection to every other rank. All ranks call this at the same time. While it lasts, rank 0
/// says who is missing, and the others when they do not reach rank 0. A rank that goes away before
/// all are there may come again. Error(peer) where a rank did not come in time, two say they are
/// the same, or they disagree about the size of the world or are not of the same version: on the
/// rank that finds it out, which has told it; StoppedByPeer on the others. Where there is a token,
/// a caller that does not know it is named and sent away, and rank 0 goes on waiting; on that
/// caller: Error(peer).
///
/// Ranks that meet again (MeetingAgain) wait until all have come that are not lost, `limit` at
/// most. Those who came take part, if all that belong to them did; the others are told so:
/// Error(peer) on them. Rank 0 takes part in any case, or nobody does.
JoinedRanks join_ranks(const TcpPlace& place, const JoinOptions& options);

}  // namespace heddle
