#pragma once

#include <functional>
#include <string>

namespace heddle::cli {

/// Looks up an environment variable; nullptr when it is not set.
using Environment = std::function<const char*(const char*)>;

/// Who started this process, and its place among its peers.
struct Launcher {
  std::string name;  ///< "torchrun", "Open MPI", "PMI", "Slurm"; "" when nobody did
  int rank = 0;
  int size = 1;
  int local_rank = 0;
};

/// Looks for torchrun, Open MPI, PMI (MPICH) and Slurm, in this order: under `srun torchrun` both
/// sets of variables exist and torchrun's are meant. Throws Error(usage) on values that make no
/// sense, and when two launchers that start the ranks themselves disagree. (Slurm's variables
/// describe the allocation and may differ.)
Launcher detect_launcher(const Environment& environment);

/// The process's own environment.
const char* process_environment(const char* name);

}  // namespace heddle::cli
