#include "comm/mpi/mpi_world.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/log.h"
#include "comm/mpi/mpi_backend.h"
#include "comm/mpi/mpi_monitor.h"

namespace heddle {
namespace {

/// Null when it cannot be opened; dlerror() says why.
void* open_library(const std::filesystem::path& library) {
  // Global: Open MPI's own plug-ins look for its symbols.
  return dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL);
}

const HeddleMpi& load(const std::filesystem::path& library) {
  void* const handle = open_library(library);
  void* const entry = handle ? dlsym(handle, "heddle_mpi_v1") : nullptr;
  if (entry == nullptr) {
    throw Error(ErrorCode::resources, fmt::format("MPI cannot be used: {}", dlerror()),
                "install Open MPI (Debian: libopenmpi-dev, openmpi-bin) and build again, or start "
                "the ranks with --ranks, torchrun, or srun --mpi=none");
  }
  return *reinterpret_cast<HeddleMpiEntry>(entry)();
}

struct Ranks {
  HeddleMpiComm comm = 0;
  int rank = 0, size = 0;
};

Ranks initialise(const HeddleMpi& mpi) {
  Ranks ranks;
  const int code = mpi.init(&ranks.comm, &ranks.rank, &ranks.size);
  if (code == -1) {
    throw Error(ErrorCode::resources, "this MPI does not allow calls from several threads",
                "use one with MPI_THREAD_MULTIPLE");
  }
  check_mpi(mpi, code, "MPI_Init_thread");
  return ranks;
}

std::string from_first(const HeddleMpi& mpi, const Ranks& ranks, std::string text) {
  int size = static_cast<int>(text.size());
  check_mpi(mpi, mpi.broadcast(ranks.comm, &size, sizeof(size), 0), "MPI_Bcast");
  text.resize(static_cast<std::size_t>(size));
  check_mpi(mpi, mpi.broadcast(ranks.comm, text.data(), size, 0), "MPI_Bcast");
  return text;
}

}  // namespace

std::filesystem::path mpi_library_beside(const std::filesystem::path& program) {
  return program.parent_path() / "libheddle_mpi.so";
}

MpiFound find_mpi(const std::filesystem::path& library) {
  if (!std::filesystem::exists(library)) {
    return {false, fmt::format("not in this build: there is no {}", library.string())};
  }
  void* const handle = open_library(library);
  if (handle == nullptr) return {false, dlerror()};
  // Both may be asked before MPI is initialised.
  using Version = int (*)(char* text, int* length);
  void* const version = dlsym(handle, "MPI_Get_library_version");
  std::string text(8192, '\0');  // the longest that MPI implementations have
  int length = 0;
  Dl_info place{};
  if (version == nullptr || dladdr(version, &place) == 0 ||
      reinterpret_cast<Version>(version)(text.data(), &length) != 0) {
    return {false, fmt::format("{} brings no MPI", library.string())};
  }
  text.resize(std::min(text.find_first_of(",\n"), static_cast<std::size_t>(length)));
  return {true, fmt::format("{} ({})", text, place.dli_fname)};
}

void run_mpi_rank(const std::filesystem::path& library, const std::function<void(World&)>& body,
                  WatchdogOptions watch) {
  run_mpi_rank_raw(
      library, [&body](World& world, const RawMpi&) { body(world); }, std::move(watch));
}

void run_mpi_rank_raw(const std::filesystem::path& library,
                      const std::function<void(World&, const RawMpi&)>& body,
                      WatchdogOptions watch) {
  const HeddleMpi& mpi = load(library);
  const Ranks ranks = initialise(mpi);
  const auto failure = std::make_shared<WorldFailure>();
  const auto flight = std::make_shared<FlightRecorder>(ranks.rank);
  MpiMonitor monitor(
      ranks.rank, ranks.size,
      [&](std::string text) { return from_first(mpi, ranks, std::move(text)); }, watch, failure,
      flight);
  const auto session = std::make_shared<MpiSession>(MpiSession{
      mpi, failure, std::make_shared<MpiProgress>(mpi, failure),
      [&](const std::string& reason) { monitor.stop_world(reason, ErrorCode::peer, reason); }});
  failure->watch(session->progress);
  auto group = std::make_shared<Group>();
  group->ranks.resize(static_cast<std::size_t>(ranks.size));
  std::iota(group->ranks.begin(), group->ranks.end(), 0);
  try {
    {
      World world(std::make_unique<Communicator>(
          std::make_shared<MpiBackend>(ranks.rank, std::move(group), ranks.comm, session), flight,
          "world"));
      body(world, {mpi, ranks.comm});
    }
    flight->set_finished();
    monitor.say_ended();
    check_mpi(mpi, mpi.finalize(), "MPI_Finalize");
  } catch (const AgreedError&) {
    flight->set_finished();
    monitor.say_ended();
    check_mpi(mpi, mpi.finalize(), "MPI_Finalize");
    throw;
  } catch (...) {
    monitor.fail_rank(std::current_exception());
  }
}

}  // namespace heddle
