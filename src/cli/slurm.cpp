#include "cli/slurm.h"

#include <fmt/format.h>

#include <charconv>

#include "base/error.h"

namespace heddle::cli {
namespace {

/// How many tasks of the step are on this node; nothing where Slurm does not say.
std::optional<int> tasks_here(const Environment& environment) {
  const char* const counts = environment("SLURM_STEP_TASKS_PER_NODE");
  const char* const node = environment("SLURM_NODEID");
  if (counts == nullptr || node == nullptr) return std::nullopt;
  return tasks_on_node(counts, launcher_rank("SLURM_NODEID", node));
}

}  // namespace

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
  const int tasks = launcher_rank("SLURM_STEP_NUM_TASKS", size);
  return Launcher{.name = "Slurm",
                  .rank = launcher_rank("SLURM_PROCID", rank),
                  .size = tasks,
                  .local_size = tasks_here(environment).value_or(tasks),
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

int tasks_on_node(std::string_view counts, int node) {
  const std::string_view all = counts;
  const auto number = [&] {
    int value = 0;
    const auto [end, error] = std::from_chars(counts.data(), counts.data() + counts.size(), value);
    if (error != std::errc{} || value < 1) {
      throw Error(
          ErrorCode::usage, fmt::format("\"{}\" does not count tasks by node", all),
          "Slurm sets SLURM_STEP_TASKS_PER_NODE; unset it to count all tasks as one node's");
    }
    counts.remove_prefix(static_cast<std::size_t>(end - counts.data()));
    return value;
  };
  while (true) {
    const int tasks = number();
    int nodes = 1;
    if (counts.starts_with("(x")) {
      counts.remove_prefix(2);
      nodes = number();
      if (counts.starts_with(')')) counts.remove_prefix(1);
    }
    if (node < nodes || counts.empty()) return tasks;
    node -= nodes;
    if (counts.starts_with(',')) counts.remove_prefix(1);
  }
}

std::uint16_t slurm_port(std::uint64_t job, std::uint64_t step) {
  constexpr std::uint64_t kFirst = 20000, kPorts = 10000, kStepsBetweenJobs = 31;
  return static_cast<std::uint16_t>(kFirst + (job * kStepsBetweenJobs + step) % kPorts);
}

}  // namespace heddle::cli
