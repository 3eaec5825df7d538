#include "cli/ranks.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "cli/launcher.h"
#include "comm/mpi/mpi_world.h"
#include "comm/staged/staged_backend.h"
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

bool is_first_process() { return detect_launcher(process_environment).rank == 0; }

void run_on_ranks(int ranks, const std::function<void(World&)>& body,
                  const WatchdogOptions& watch) {
  if (detect_launcher(process_environment).size == 1) return run_ranks(ranks, body, watch);
  const auto program = std::filesystem::read_symlink("/proc/self/exe");
  run_mpi_rank(mpi_library_beside(program), body, watch);
}

void run_on_devices(Device::Kind kind, int ranks, const std::function<void(World&, Device)>& body,
                    const WatchdogOptions& watch) {
  if (kind == Device::Kind::cpu) {
    return run_on_ranks(
        ranks, [&](World& world) { body(world, {}); }, watch);
  }
  const Launcher launcher = detect_launcher(process_environment);
  run_on_ranks(
      ranks,
      [&](World& host) {
        const int local = launcher.size > 1 ? launcher.local_rank : host.rank();
        const Device device{kind, local % std::max(1, cuda_device_count())};
        if (host.size() == 1) return body(host, device);
        World world(std::make_unique<Communicator>(through_host(host.all().backend(), device),
                                                   host.all().shared_flight(), "world"));
        body(world, device);
      },
      watch);
}

}  // namespace heddle::cli
