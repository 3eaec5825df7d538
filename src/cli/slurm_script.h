#pragma once

#include <string>
#include <vector>

namespace heddle::cli {

/// A job for Slurm.
struct SlurmJob {
  int ranks = 2;
  int nodes = 0;                          ///< that have as many ranks each; 0: as Slurm likes
  int cpus = 0;                           ///< processors of a rank; 0: as Slurm likes
  bool gpus = false;                      ///< each rank has one
  bool plain = false;                     ///< ends when a rank is lost, else goes on without
  bool restart = false;                   ///< a rank that was lost comes back by itself
  std::vector<std::string> command = {};  ///< the words behind the program's name
};

/// Its script. Error(usage) where the ranks cannot be shared by the nodes, or what was asked for
/// does not go together.
std::string slurm_script(const SlurmJob& job);

}  // namespace heddle::cli
