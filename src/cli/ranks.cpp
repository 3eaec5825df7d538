#include "cli/ranks.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "cli/launcher.h"
#include "cli/local_processes.h"
#include "comm/mpi/mpi_world.h"
#include "comm/nccl/nccl_backend.h"
#include "comm/staged/staged_backend.h"
#include "comm/tcp/tcp_world.h"
#include "comm/threads/thread_world.h"
#include "train/rank_agreement.h"

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

namespace {

/// torchrun says where rank 0 is; its own store listens on the port, ours takes the next one.
TcpPlace tcp_place(const Launcher& launcher) {
  const char* const address = process_environment("MASTER_ADDR");
  const char* const port = process_environment("MASTER_PORT");
  const auto number_in = [](const char* text, int otherwise) {
    if (text != nullptr) std::from_chars(text, text + std::strlen(text), otherwise);
    return otherwise;
  };
  const int number = number_in(port, 0);
  if (address == nullptr || number <= 0 || number > 65534) {
    throw Error(ErrorCode::usage,
                fmt::format("RANK = {} and WORLD_SIZE = {}, but MASTER_ADDR and MASTER_PORT do not "
                            "say where rank 0 is",
                            launcher.rank, launcher.size),
                "start with torchrun, or unset RANK and WORLD_SIZE");
  }
  return {.rank = launcher.rank,
          .size = launcher.size,
          .address = address,
          .port = static_cast<std::uint16_t>(number + 1),
          .listening = number_in(process_environment(kListeningVariable), -1)};
}

}  // namespace

void run_on_ranks(int ranks, const std::function<void(World&)>& body,
                  const WatchdogOptions& watch) {
  const Launcher launcher = detect_launcher(process_environment);
  if (launcher.size == 1) return run_ranks(ranks, body, watch);
  if (launcher.name == "torchrun") return run_tcp_rank(tcp_place(launcher), body, watch);
  const auto program = std::filesystem::read_symlink("/proc/self/exe");
  run_mpi_rank(mpi_library_beside(program), body, watch);
}

void run_on_devices(Device::Kind kind, int ranks, const std::function<void(World&, Device)>& body,
                    const WatchdogOptions& watch) {
  RunIdentity computes_on;
  computes_on.add("run.device", kind == Device::Kind::cpu ? "\"cpu\"" : "\"cuda\"",
                  config::Scope::launch);
  if (kind == Device::Kind::cpu) {
    return run_on_ranks(
        ranks,
        [&](World& world) {
          require_same_on_all_ranks(world, computes_on);
          body(world, {});
        },
        watch);
  }
  const Launcher launcher = detect_launcher(process_environment);
  if (launcher.size == 1 && ranks > 1) {
    // Threads cannot share a GPU over NCCL.
    if (has_nccl()) run_local_processes(ranks);
  }
  run_on_ranks(
      ranks,
      [&](World& host) {
        require_same_on_all_ranks(host, computes_on);
        const int local = launcher.size > 1 ? launcher.local_rank : host.rank();
        const Device device{kind, local % std::max(1, cuda_device_count())};
        if (host.size() == 1) return body(host, device);
        const auto& joined = host.all().backend();
        const bool uses_nccl = launcher.size > 1 && has_nccl();
        World world(std::make_unique<Communicator>(
            uses_nccl ? over_nccl(joined, device) : through_host(joined, device),
            host.all().shared_flight(), "world"));
        body(world, device);
      },
      watch);
}

}  // namespace heddle::cli
