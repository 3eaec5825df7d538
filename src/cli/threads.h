#pragma once

namespace heddle::cli {

/// Threads to compute with on each of `ranks` ranks of this machine: `wanted`, or when 0 what
/// OMP_NUM_THREADS says, or the rank's share of the cores this process may use.
int thread_count(int wanted, int ranks = 1);

/// Lets threads that wait for others of their team look for some hundred microseconds before they
/// sleep, instead of OpenMP's milliseconds, unless OMP_WAIT_POLICY or GOMP_SPINCOUNT says what the
/// user wants (docs/design/017-waiting-threads.md). Before the first operation is called: OpenMP
/// reads it while it is loaded.
void wait_briefly();

}  // namespace heddle::cli
