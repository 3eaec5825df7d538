#include "cli/slurm.h"

#include <fmt/format.h>

#include "base/error.h"

namespace heddle::cli {

std::optional<Launcher> slurm_launcher(const Environment& environment) {
  const char* const rank = environment("SLURM_PROCID");
  const char* const step = environment("SLURM_STEP_ID");
  const char* size = environment("SLURM_STEP_NUM_TASKS");
  if (size == nullptr) size = environment("SLURM_NTASKS");
  if (rank == nullptr || step == nullptr || size == nullptr) return std::nullopt;
  // The batch script, the shell that salloc gives on a node, and others of Slurm's own are steps
  // with numbers from the top of 32 bits.
  constexpr std::int64_t kFirstOwnStep = 0xfffffff0;
  if (launcher_number("SLURM_STEP_ID", step) >= kFirstOwnStep) return std::nullopt;
  return Launcher{.name = "Slurm",
                  .rank = launcher_rank("SLURM_PROCID", rank),
                  .size = launcher_rank("SLURM_STEP_NUM_TASKS", size),
                  .joins_by_mpi = environment("PMIX_RANK") != nullptr,
                  .prints_together = true};
}

std::string first_host(std::string_view list) {
  const auto refuse = [&] {
    throw Error(ErrorCode::usage, fmt::format("\"{}\" is not a list of hosts", list),
                "set MASTER_ADDR to the machine of rank 0");
  };
  std::string host;
  for (std::size_t at = 0; at < list.size() && list[at] != ',';) {
    if (list[at] != '[') {
      host += list[at++];
      continue;
    }
    const std::size_t close = list.find(']', at);
    const std::size_t first = at + 1;
    const std::size_t end = list.find_first_not_of("0123456789", first);
    if (close == std::string_view::npos || end == first || end > close) refuse();
    host += list.substr(first, end - first);
    at = close + 1;
  }
  if (host.empty() || host.find(']') != std::string::npos) refuse();
  return host;
}

std::uint16_t slurm_port(std::uint64_t job, std::uint64_t step) {
  constexpr std::uint64_t kFirst = 20000, kPorts = 10000, kStepsBetweenJobs = 31;
  return static_cast<std::uint16_t>(kFirst + (job * kStepsBetweenJobs + step) % kPorts);
}

}  // namespace heddle::cli
