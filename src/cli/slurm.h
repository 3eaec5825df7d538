#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cli/launcher.h"

namespace heddle::cli {

/// This process's place in the job step that srun started. Nothing in a batch script or in a shell
/// of salloc: Slurm's variables are there too and describe the allocation, but nobody started
/// ranks. The ranks join by MPI where srun offers PMIx (PMI is a convention of its own), else over
/// TCP: MPI would take every process for the only one.
std::optional<Launcher> slurm_launcher(const Environment& environment);

/// The first host of a list as Slurm writes it: "node[01-03,07],gpu5" gives "node01". Error(usage)
/// when it makes no sense.
std::string first_host(std::string_view list);

/// Of counts as Slurm writes them, "4(x2),3" (two nodes with 4 tasks, then one with 3): that of a
/// node, which counts from 0. Error(usage) when it makes no sense.
int tasks_on_node(std::string_view counts, int node);

/// A port from 20000 to 29999, below those that systems give to callers, for the ranks of a step to
/// meet at. Steps of one job, and jobs that follow each other, get different ones.
std::uint16_t slurm_port(std::uint64_t job, std::uint64_t step);

}  // namespace heddle::cli
