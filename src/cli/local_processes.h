#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "comm/tcp_listener.h"

namespace heddle::cli {

/// Tells these processes that we started them, and rank 0 of them which open file is the socket it
/// listens on.
inline constexpr const char* kListeningVariable = "HEDDLE_LISTENING";
/// Tells a newcomer which open file it is to write a byte to when the others have let it in.
inline constexpr const char* kLetInVariable = "HEDDLE_LET_IN";

/// The machine that NCCL is to take a local rank for, where so many share so many GPUs in turns;
/// empty, which leaves it to NCCL, where each has a GPU of its own. NCCL refuses two ranks of one
/// machine on one GPU: those of another turn are on another machine, which it reaches by sockets.
std::string nccl_machine_of(int rank, int ranks, int gpus);

/// A process of this program as a rank of a world on this machine, by torchrun's variables.
struct RankProcess {
  int rank = 0, ranks = 1;
  TcpListener meeting = {};  ///< where they meet; rank 0 inherits the socket
  int let_in = -1;           ///< of a newcomer, which inherits it: kLetInVariable
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
