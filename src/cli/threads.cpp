#include "cli/threads.h"

#include <cstdlib>

#include "observe/machine.h"

namespace heddle::cli {

int thread_count(int wanted) {
  if (wanted > 0) return wanted;
  if (const char* limit = std::getenv("OMP_NUM_THREADS")) {
    if (const int threads = std::atoi(limit); threads > 0) return threads;
  }
  return observe::inspect_machine().cores_usable;
}

}  // namespace heddle::cli
