#include "cli/launcher.h"

#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "base/error.h"

namespace heddle::cli {
namespace {

struct Convention {
  const char* name;
  const char* rank;
  const char* size;
  const char* local_rank;
  bool starts_ranks;  ///< false for a scheduler, whose variables another launcher's ranks inherit
};

constexpr std::array<Convention, 4> kConventions = {{
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", true},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     true},
    {"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", true},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", false},
}};

int parse_variable(const char* name, const char* text) {
  int value = 0;
  const char* end = text + std::strlen(text);
  const auto [at, error] = std::from_chars(text, end, value);
  if (error != std::errc{} || at != end || value < 0) {
    throw Error(ErrorCode::usage, fmt::format("{} = \"{}\" is not a number", name, text),
                "the launcher sets it; unset it to run as a single process");
  }
  return value;
}

std::optional<Launcher> read_convention(const Convention& convention,
                                        const Environment& environment) {
  const char* rank = environment(convention.rank);
  const char* size = environment(convention.size);
  // One without the other is a left-over or a batch script before srun: nobody started ranks.
  if (rank == nullptr || size == nullptr) return std::nullopt;
  Launcher launcher{.name = convention.name,
                    .rank = parse_variable(convention.rank, rank),
                    .size = parse_variable(convention.size, size)};
  if (launcher.rank >= launcher.size) {
    throw Error(ErrorCode::usage,
                fmt::format("{} = {} but {} = {}: ranks count from 0", convention.rank,
                            launcher.rank, convention.size, launcher.size),
                "check how the launcher was called");
  }
  if (const char* local = environment(convention.local_rank)) {
    launcher.local_rank = parse_variable(convention.local_rank, local);
  }
  return launcher;
}

}  // namespace

Launcher detect_launcher(const Environment& environment) {
  std::optional<Launcher> used;
  for (const auto& convention : kConventions) {
    const auto found = read_convention(convention, environment);
    if (!found) continue;
    if (!used) {
      used = found;
    } else if (convention.starts_ranks &&
               (found->rank != used->rank || found->size != used->size)) {
      throw Error(ErrorCode::usage,
                  fmt::format("{} says rank {} of {}, {} says rank {} of {}", used->name,
                              used->rank, used->size, found->name, found->rank, found->size),
                  "start with one launcher only, or unset the variables of the other");
    }
  }
  return used.value_or(Launcher{});
}

const char* process_environment(const char* name) { return std::getenv(name); }

}  // namespace heddle::cli
