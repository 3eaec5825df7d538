#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "comm/tcp_listener.h"

namespace heddle::cli {

/// Tells these processes that we started them, and rank 0 of them which open file is the socket it
/// listens on.
inline constexpr const char* kListeningVariable = "HEDDLE_LISTENING";

/// A process of this program as a rank of a world on this machine, by torchrun's variables. Ranks
/// get an NCCL_HOSTID of their own: NCCL then takes those that share a GPU for machines and uses
/// sockets.
struct RankProcess {
  int rank = 0, ranks = 1;
  TcpListener meeting = {};  ///< where they meet; rank 0 inherits the socket
  std::vector<std::string> arguments = {};
  std::vector<std::string> variables = {};  ///< NAME=value, more than it inherits
};
/// It ends with the one that started it. Error(resources) when it cannot be started.
pid_t start_rank(const RankProcess& process);
/// The exit status of a rank by what waitpid said of it: Error(peer)'s where something killed it.
int status_of_rank(int state);

/// Starts this program `ranks` times with the same arguments, as ranks of one world on this machine
/// (torchrun's variables), and waits for all. When one fails, the others are given a few seconds to
/// say why they stop, and are then ended: no process is left. Signals that a run answers are passed
/// on to them. Always throws Ended, with the status of the one that failed first.
[[noreturn]] void run_local_processes(int ranks);

}  // namespace heddle::cli
