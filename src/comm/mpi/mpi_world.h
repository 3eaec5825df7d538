#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "comm/mpi/mpi_shim.h"
#include "comm/watchdog.h"
#include "comm/world.h"

namespace heddle {

/// The library that brings MPI, which lies beside the program.
std::filesystem::path mpi_library_beside(const std::filesystem::path& program);

/// Whether MPI can be used: its name, version and place, or why not. Opened as run_mpi_rank opens
/// it.
struct MpiFound {
  bool is_usable = false;
  std::string text;
};
MpiFound find_mpi(const std::filesystem::path& library);

/// Runs `body` as the rank that mpirun, or another launcher that MPI knows, made of this process.
/// Once in a process. When it fails, the other ranks stop with "rank N stopped: why"; when another
/// failed, throws StoppedByPeer with that reason, or, from within an MPI call that does not return,
/// ends the process (see MpiMonitor). Error(resources) when MPI is not there.
void run_mpi_rank(const std::filesystem::path& library, const std::function<void(World&)>& body,
                  WatchdogOptions watch = {});

/// MPI's own functions and its communicator of all ranks, to measure against.
struct RawMpi {
  const HeddleMpi& mpi;
  HeddleMpiComm comm;
};
/// The same for a body that also calls MPI itself.
void run_mpi_rank_raw(const std::filesystem::path& library,
                      const std::function<void(World&, const RawMpi&)>& body,
                      WatchdogOptions watch = {});

}  // namespace heddle
