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

void wait_briefly() {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  constexpr const char* kLooks = "4000";  // 25 to 70 ns each, by processor
  setenv("GOMP_SPINCOUNT", kLooks, /*overwrite=*/0);
}

}  // namespace heddle::cli
