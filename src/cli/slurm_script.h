#pragma once

#include <string>
#include <vector>

namespace heddle::cli {

/// A job script for a run of so many ranks that goes on when some are lost. `command`: the words
/// behind the program's name. With `restart`, a rank that was lost comes back by itself.
std::string slurm_script(int ranks, bool restart, const std::vector<std::string>& command);

}  // namespace heddle::cli
