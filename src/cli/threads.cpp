#include "cli/threads.h"

#include <algorithm>
#include <cstdlib>

#include "observe/machine.h"

namespace heddle::cli {

int thread_count(int wanted, int ranks) {
  if (wanted > 0) return wanted;
  if (const char* limit = std::getenv("OMP_NUM_THREADS")) {
    if (const int threads = std::atoi(limit); threads > 0) return threads;
  }
  return std::max(1, observe::inspect_machine().cores_usable / ranks);
}

}  // namespace heddle::cli
