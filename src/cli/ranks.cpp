#include "cli/ranks.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "cli/ended.h"
#include "cli/launcher.h"
#include "cli/local_processes.h"
#include "cli/shared_failure.h"
#include "cli/tcp_settings.h"
#include "comm/failure_text.h"
#include "comm/mpi/mpi_world.h"
#include "comm/nccl/nccl_backend.h"
#include "comm/staged/staged_backend.h"
#include "comm/stopped_by_peer.h"
#include "comm/tcp/tcp_world.h"
#include "comm/threads/thread_world.h"
#include "train/rank_agreement.h"
#include "train/stop_signals.h"

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

int several_ranks(int local) { return local == 0 ? std::max(2, rank_count(1)) : rank_count(local); }

bool can_meet_again() {
  const Launcher launcher = detect_launcher(process_environment);
  return launcher.size > 1 && !launcher.joins_by_mpi;
}

bool is_first_process() { return detect_launcher(process_environment).rank == 0; }

bool speaks(const Error& error) {
  if (error.code() != ErrorCode::usage) return true;
  try {
    const Launcher launcher = detect_launcher(process_environment);
    return launcher.rank == 0 || !launcher.prints_together;
  } catch (const Error&) {  // what the launcher says makes no sense, which is this error
    return true;
  }
}

namespace {

/// MPI that does not understand the launcher takes every process for the only one.
void check_size(const World& world, const Launcher& launcher) {
  if (world.size() == launcher.size) return;
  throw Error(ErrorCode::peer,
              fmt::format("{} started {} ranks, but MPI knows of {}", launcher.name, launcher.size,
                          world.size()),
              "use the mpirun of the MPI that heddle was built with, or srun --mpi=none, which "
              "joins the ranks over TCP");
}

/// What a rank ends with whose world failed so: the cause's own status, also where that is a signal
/// that ended another rank at once.
int status_of(const std::exception_ptr& failure) {
  const auto signal = status_of_rank_ended_at_once(failure_text(failure));
  return signal.value_or(static_cast<int>(failure_code(failure)));
}

/// As the rank that the launcher made of this process. The user hears once of what the ranks fail
/// of: from the rank that knows it.
void run_as_rank(const Launcher& launcher, const std::function<void(World&)>& body,
                 WatchdogOptions watch, SitesLeft* left) {
  std::atomic<bool> has_told = false;
  watch.tell = [&](const std::string& text) {
    log_line(LogLevel::error, text);
    has_told = true;
  };
  // The same status as that of a rank which is not in the middle of something long.
  watch.give_up = [](const std::string& reason) {
    if (const auto signal = status_of_rank_ended_at_once(reason)) std::_Exit(*signal);
  };
  try {
    if (!launcher.joins_by_mpi) {
      return left != nullptr
                 ? run_with_sites_left(tcp_place(launcher, process_environment), body, watch, *left)
                 : run_tcp_rank(tcp_place(launcher, process_environment), body, watch);
    }
    const auto checked = [&](World& world) {
      check_size(world, launcher);
      try {
        body(world);
      } catch (const AgreedError& error) {
        // Before ranks leave MPI, which they do together: mpirun ends those that are left as soon
        // as one has failed.
        if (launcher.rank == 0) log_line(LogLevel::error, error.what());
        throw;
      }
    };
    run_mpi_rank(mpi_library_beside(std::filesystem::read_symlink("/proc/self/exe")), checked,
                 watch);
  } catch (const AgreedError& error) {
    if (launcher.rank == 0 && !launcher.joins_by_mpi) throw;
    if (launcher.rank != 0 && !launcher.prints_together) {
      log_info("rank {} stopped; rank 0 says why", launcher.rank);
    }
    throw Ended{static_cast<int>(error.code())};
  } catch (const StoppedByPeer& stop) {
    if (!launcher.prints_together && !has_told) {
      log_line(LogLevel::error,
               fmt::format("rank {} stopped; rank {} says why", launcher.rank, stop.teller()));
    }
    throw Ended{status_of(std::current_exception())};
  } catch (const std::exception&) {
    if (has_told) throw Ended{status_of(std::current_exception())};
    throw;
  }
}

/// Ranks first tell each other whether they got here well. `status`: what came out of that.
void run_met(const Launcher& launcher, const std::exception_ptr& failure,
             const std::function<void(World&)>& body, const WatchdogOptions& watch, int& status,
             SitesLeft* left = nullptr) {
  run_as_rank(
      launcher,
      [&](World& world) {
        status = tell_shared_failure(world, failure);
        if (status == 0) body(world);
      },
      watch, left);
  if (status != 0) throw Ended{status};
}

}  // namespace

void prepare_on_ranks(const std::function<void()>& prepare) {
  const Launcher launcher = detect_launcher(process_environment);
  if (launcher.size == 1 || !launcher.prints_together) return prepare();
  try {
    return prepare();
  } catch (const std::exception&) {
    const auto failure = std::current_exception();
    int status = 0;
    try {
      run_met(launcher, failure, {}, {.joining = std::chrono::seconds(30)}, status);
    } catch (...) {
      if (status != 0) throw;
    }
    // The others are not there to hear it.
    log_line(LogLevel::error,
             fmt::format("rank {}: {}", launcher.rank, failure_text_with_hint(failure)));
    throw Ended{static_cast<int>(failure_code(failure))};
  }
}

void run_on_ranks(int ranks, const std::function<void(World&)>& body, const WatchdogOptions& watch,
                  SitesLeft* left) {
  const Launcher launcher = detect_launcher(process_environment);
  if (launcher.size == 1) return run_ranks(ranks, body, watch);
  int status = 0;
  run_met(launcher, nullptr, body, watch, status, left);
}

Device device_of(Device::Kind kind, int local_rank) {
  if (kind == Device::Kind::cpu) return {};
  return {kind, local_rank % std::max(1, cuda_device_count())};
}

void run_on_devices(Device::Kind kind, int ranks, const std::function<void(World&, Device)>& body,
                    const WatchdogOptions& watch, SitesLeft* left) {
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
        watch, left);
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
        const Device device = device_of(kind, local);
        if (host.size() == 1) return body(host, device);
        const auto& joined = host.all().backend();
        const bool uses_nccl = launcher.size > 1 && has_nccl();
        World world(std::make_unique<Communicator>(
            uses_nccl ? over_nccl(joined, device) : through_host(joined, device),
            host.all().shared_flight(), "world"));
        body(world, device);
      },
      watch, left);
}

}  // namespace heddle::cli
