#include "cli/ranks.h"

#include "base/error.h"
#include "cli/launcher.h"
#include "comm/threads/thread_world.h"

namespace heddle::cli {

int rank_count(int local) {
  const Launcher launcher = detect_launcher(process_environment);
  if (launcher.size == 1) return local;
  if (local != 1 && local != launcher.size) {
    throw Error(
        ErrorCode::usage,
        fmt::format("--ranks {}, but {} started {} ranks", local, launcher.name, launcher.size),
        "leave --ranks out under a launcher");
  }
  return launcher.size;
}

void run_on_ranks(int ranks, const std::function<void(World&)>& body) { run_ranks(ranks, body); }

}  // namespace heddle::cli
