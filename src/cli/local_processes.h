#pragma once

namespace heddle::cli {

/// Tells these processes that we started them, and rank 0 of them which open file is the socket it
/// listens on.
inline constexpr const char* kListeningVariable = "HEDDLE_LISTENING";

/// Starts this program `ranks` times with the same arguments, as ranks of one world on this machine
/// (torchrun's variables), and waits for all. When one fails, the others are given a few seconds to
/// say why they stop, and are then ended: no process is left. Signals that a run answers are passed
/// on to them. Always throws Ended, with the status of the one that failed first. Ranks that share
/// a GPU get an NCCL_HOSTID of their own: NCCL then takes them for machines and uses sockets.
[[noreturn]] void run_local_processes(int ranks);

}  // namespace heddle::cli
