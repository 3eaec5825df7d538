#include "cli/slurm_script.h"

#include <fmt/format.h>

#include "cli/own_arguments.h"

namespace heddle::cli {
namespace {

constexpr const char* kScript = R"(#!/bin/bash
#SBATCH --job-name=heddle
#SBATCH --ntasks={ranks}
#SBATCH --no-kill                # a node that fails does not end the job
#SBATCH --open-mode=append

# Who knows the token can join the run: only you can read it.
umask 077
export HEDDLE_TOKEN_FILE="$PWD/heddle-$SLURM_JOB_ID.token"
[ -e "$HEDDLE_TOKEN_FILE" ] || head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' > "$HEDDLE_TOKEN_FILE"

srun --mpi=none --no-kill --kill-on-bad-exit=0 bash -c '{ranks_run}'
)";

/// Statuses of a loss: 4, or 128 + the signal that killed it.
constexpr const char* kComesBack = R"(
  {command} --elastic
  status=$?
  for again in 1 2 3; do
    [ $status -eq 4 ] || [ $status -gt 128 ] || break
    {newcomer} --join
    status=$?
  done
  exit $status
)";

}  // namespace

std::string slurm_script(int ranks, bool restart, const std::vector<std::string>& command) {
  std::string all = "heddle", newcomer = "heddle";
  for (const std::string& word : command) {
    all += " " + quoted(word);
    if (word != "--fresh") newcomer += " " + quoted(word);
  }
  const std::string inner = restart
                                ? fmt::format(fmt::runtime(kComesBack), fmt::arg("command", all),
                                              fmt::arg("newcomer", newcomer))
                                : all + " --elastic";
  std::string escaped;  // inside the quotes of bash -c
  for (const char c : inner) escaped += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return fmt::format(fmt::runtime(kScript), fmt::arg("ranks", ranks),
                     fmt::arg("ranks_run", escaped));
}

}  // namespace heddle::cli
