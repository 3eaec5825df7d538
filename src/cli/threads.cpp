#include "cli/threads.h"

#include <algorithm>
#include <cstdlib>

#include "cli/launcher.h"
#include "observe/machine.h"

namespace heddle::cli {

int thread_count(int wanted, int ranks) {
  if (wanted > 0) return wanted;
  if (const char* limit = std::getenv("OMP_NUM_THREADS")) {
    if (const int threads = std::atoi(limit); threads > 0) return threads;
  }
  const int cores = observe::inspect_machine().cores_usable;
  const Launcher launcher = detect_launcher(process_environment);
  if (launcher.size == 1) return std::max(1, cores / ranks);
  // Slurm binds a task to the processors that it was given.
  if (const char* own = process_environment("SLURM_CPUS_PER_TASK");
      launcher.name == "Slurm" && own) {
    return std::clamp(launcher_rank("SLURM_CPUS_PER_TASK", own), 1, cores);
  }
  return std::max(1, cores / launcher.local_size);
}

void wait_briefly() {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  constexpr const char* kLooks = "4000";  // 25 to 70 ns each, by processor
  setenv("GOMP_SPINCOUNT", kLooks, /*overwrite=*/0);
}

}  // namespace heddle::cli
