#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace heddle::cli {

/// Looks up an environment variable; nullptr when it is not set.
using Environment = std::function<const char*(const char*)>;

/// Who started this process, and its place among its peers.
struct Launcher {
  std::string name = {};  ///< "torchrun", "Open MPI", "PMI", "Slurm"; "" when nobody did
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;  ///< ranks on this machine; all of them where the launcher does not say
  bool joins_by_mpi = false;  ///< else over TCP
  /// One command started all ranks and shows what each of them prints. Not where somebody set
  /// torchrun's variables by hand, perhaps in several terminals.
  bool prints_together = false;
};

/// Looks for torchrun, Open MPI, PMI (MPICH) and Slurm, in this order: under `srun torchrun` both
/// sets of variables exist and torchrun's are meant. Throws Error(usage) on values that make no
/// sense, and when two launchers that start the ranks themselves disagree. (Slurm's variables
/// describe the allocation and may differ.)
Launcher detect_launcher(const Environment& environment);

/// Where the ranks of a launcher without MPI meet.
struct MeetingPoint {
  std::string address;
  std::uint16_t port = 0;
};
/// MASTER_ADDR and the port after MASTER_PORT, on which torchrun's own store listens. Under Slurm
/// what is not set follows from the step: its first host, and a port for its job and number.
/// Error(usage) when it cannot be known.
MeetingPoint meeting_point(const Launcher& launcher, const Environment& environment);

/// The value of a launcher's variable. Error(usage) when it is not a number, or negative.
std::int64_t launcher_number(const char* name, const char* text);
/// The same for one that counts ranks.
int launcher_rank(const char* name, const char* text);

/// The process's own environment.
const char* process_environment(const char* name);

}  // namespace heddle::cli
