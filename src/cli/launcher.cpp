#include "cli/launcher.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <optional>

#include "base/error.h"
#include "cli/local_processes.h"
#include "cli/slurm.h"

namespace heddle::cli {
namespace {

struct Convention {
  const char* name;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
  bool joins_by_mpi;
};

constexpr std::array<Convention, 3> kConventions = {{
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", false},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", true},
    {"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", true},
}};

void check_rank(const Launcher& launcher, const char* rank, const char* size) {
  if (launcher.rank < launcher.size) return;
  throw Error(ErrorCode::usage,
              fmt::format("{} = {} but {} = {}: ranks count from 0", rank, launcher.rank, size,
                          launcher.size),
              "check how the launcher was called");
}

std::optional<Launcher> read_convention(const Convention& convention,
                                        const Environment& environment) {
  const char* rank = environment(convention.rank);
  const char* size = environment(convention.size);
  // One without the other is a left-over: nobody started ranks.
  if (rank == nullptr || size == nullptr) return std::nullopt;
  Launcher launcher{.name = convention.name,
                    .rank = launcher_rank(convention.rank, rank),
                    .size = launcher_rank(convention.size, size),
                    .joins_by_mpi = convention.joins_by_mpi,
                    .prints_together = convention.joins_by_mpi ||
                                       environment("TORCHELASTIC_RUN_ID") != nullptr ||
                                       environment(kListeningVariable) != nullptr};
  check_rank(launcher, convention.rank, convention.size);
  if (const char* local = environment(convention.local_rank)) {
    launcher.local_rank = launcher_rank(convention.local_rank, local);
  }
  launcher.local_size = launcher.size;
  if (const char* here = environment(convention.local_size)) {
    launcher.local_size =
        std::clamp(launcher_rank(convention.local_size, here), 1, std::max(1, launcher.size));
  }
  return launcher;
}

}  // namespace

std::int64_t launcher_number(const char* name, const char* text) {
  std::int64_t value = 0;
  const char* end = text + std::strlen(text);
  const auto [at, error] = std::from_chars(text, end, value);
  if (error != std::errc{} || at != end || value < 0) {
    throw Error(ErrorCode::usage, fmt::format("{} = \"{}\" is not a number", name, text),
                "the launcher sets it; unset it to run as a single process");
  }
  return value;
}

int launcher_rank(const char* name, const char* text) {
  const std::int64_t value = launcher_number(name, text);
  if (value > std::numeric_limits<int>::max()) {
    throw Error(ErrorCode::usage, fmt::format("{} = {} is too large", name, text),
                "the launcher sets it; unset it to run as a single process");
  }
  return static_cast<int>(value);
}

Launcher detect_launcher(const Environment& environment) {
  std::optional<Launcher> used;
  for (const auto& convention : kConventions) {
    const auto found = read_convention(convention, environment);
    if (!found) continue;
    if (!used) {
      used = found;
    } else if (found->rank != used->rank || found->size != used->size) {
      throw Error(ErrorCode::usage,
                  fmt::format("{} says rank {} of {}, {} says rank {} of {}", used->name,
                              used->rank, used->size, found->name, found->rank, found->size),
                  "start with one launcher only, or unset the variables of the other");
    }
  }
  if (used) return *used;
  auto slurm = slurm_launcher(environment);
  if (!slurm) return {};
  check_rank(*slurm, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS");
  if (const char* local = environment("SLURM_LOCALID")) {
    slurm->local_rank = launcher_rank("SLURM_LOCALID", local);
  }
  return *slurm;
}

MeetingPoint meeting_point(const Launcher& launcher, const Environment& environment) {
  const char* const address = environment("MASTER_ADDR");
  const char* const port = environment("MASTER_PORT");
  const char* hosts = environment("SLURM_STEP_NODELIST");
  if (hosts == nullptr) hosts = environment("SLURM_JOB_NODELIST");
  const char* const job = environment("SLURM_JOB_ID");
  const bool is_slurm = launcher.name == "Slurm";
  if ((address == nullptr && (!is_slurm || hosts == nullptr)) ||
      (port == nullptr && (!is_slurm || job == nullptr))) {
    throw Error(ErrorCode::usage,
                fmt::format("{} made this rank {} of {}, but MASTER_ADDR and MASTER_PORT do not "
                            "say where rank 0 is",
                            launcher.name, launcher.rank, launcher.size),
                is_slurm ? "set both" : "start with torchrun, or unset RANK and WORLD_SIZE");
  }
  MeetingPoint point{.address = address != nullptr ? address : first_host(hosts)};
  if (port == nullptr) {
    const char* const step = environment("SLURM_STEP_ID");
    point.port = slurm_port(static_cast<std::uint64_t>(launcher_number("SLURM_JOB_ID", job)),
                            static_cast<std::uint64_t>(launcher_number("SLURM_STEP_ID", step)));
    return point;
  }
  const std::int64_t number = launcher_number("MASTER_PORT", port);
  if (number == 0 || number > 65534) {
    throw Error(ErrorCode::usage, fmt::format("MASTER_PORT = {} is no port", port),
                "use one from 1024 to 65534; ranks meet at the next one");
  }
  point.port = static_cast<std::uint16_t>(number + 1);
  return point;
}

const char* process_environment(const char* name) { return std::getenv(name); }

}  // namespace heddle::cli
