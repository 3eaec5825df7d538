#pragma once

namespace heddle::cli {

/// Threads to compute with: `wanted`, or when 0 what OMP_NUM_THREADS says, or the cores this
/// process may use.
int thread_count(int wanted);

}  // namespace heddle::cli
