#pragma once

namespace heddle::cli {

/// Threads to compute with on each of `ranks` ranks of this machine: `wanted`, or when 0 what
/// OMP_NUM_THREADS says, or the rank's share of the cores this process may use.
int thread_count(int wanted, int ranks = 1);

}  // namespace heddle::cli
