#include "cli/slurm_script.h"

#include <fmt/format.h>

#include "base/error.h"
#include "cli/own_arguments.h"

namespace heddle::cli {
namespace {

constexpr const char* kToken = R"(
# Who knows the token can join the run: only you can read it.
export HEDDLE_TOKEN_FILE="$PWD/heddle-$SLURM_JOB_ID.token"
[ -e "$HEDDLE_TOKEN_FILE" ] ||
  (umask 077; head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' > "$HEDDLE_TOKEN_FILE")

)";

/// Statuses of a loss: 4, or 128 + the signal that killed it. 130 and 143 are those of a rank that
/// was told to stop (SIGINT, SIGTERM) before it had anything to save.
constexpr const char* kComesBack = R"(
  {command} --elastic
  status=$?
  for again in 1 2 3; do
    case $status in
      130 | 143) break ;;
    esac
    [ $status -eq 4 ] || [ $status -gt 128 ] || break
    {newcomer} --join
    status=$?
  done
  exit $status
)";

std::string words_of(const std::vector<std::string>& command, bool is_newcomer) {
  std::string words = "heddle";
  for (const std::string& word : command) {
    // A newcomer finds what the others have done since.
    if (!is_newcomer || word != "--fresh") words += " " + quoted(word);
  }
  return words;
}

/// What Slurm is asked for.
std::string head_of(const SlurmJob& job) {
  std::string head = "#!/bin/bash\n#SBATCH --job-name=heddle\n";
  const auto ask = [&](const std::string& option, const char* reason = nullptr) {
    head += reason == nullptr ? fmt::format("#SBATCH {}\n", option)
                              : fmt::format("#SBATCH {:24} # {}\n", option, reason);
  };
  if (job.nodes == 0) {
    ask(fmt::format("--ntasks={}", job.ranks));
    if (job.gpus) ask("--gpus-per-task=1");
  } else {
    const int each = job.ranks / job.nodes;
    ask(fmt::format("--nodes={}", job.nodes));
    ask(fmt::format("--ntasks-per-node={}", each));
    // All GPUs of a node are seen by all its ranks, so that these can reach each other's memory.
    if (job.gpus) ask(fmt::format("--gpus-per-node={}", each));
  }
  if (job.cpus > 0) ask(fmt::format("--cpus-per-task={}", job.cpus));
  if (!job.plain) ask("--no-kill", "a node that fails does not end the job");
  ask("--signal=INT@120", "before time is up, save a checkpoint and end; sbatch again goes on");
  ask("--open-mode=append");
  return head;
}

void check(const SlurmJob& job) {
  if (job.nodes > 0 && job.ranks % job.nodes != 0) {
    throw Error(
        ErrorCode::usage,
        fmt::format("--ranks {} cannot be shared evenly by --nodes {}", job.ranks, job.nodes),
        fmt::format("use a multiple of {}", job.nodes));
  }
  if (job.plain && job.restart) {
    throw Error(ErrorCode::usage, "--restart brings ranks back to a run that goes on without them",
                "leave out --plain, which ends with the first rank that is lost");
  }
}

}  // namespace

std::string slurm_script(const SlurmJob& job) {
  check(job);
  const std::string share = job.cpus > 0 ? fmt::format(" --cpus-per-task={}", job.cpus) : "";
  const std::string all = words_of(job.command, false);
  if (job.plain) {
    return head_of(job) +
           fmt::format("{}srun --mpi=none --kill-on-bad-exit=1{} {}\n", kToken, share, all);
  }
  const std::string inner = job.restart
                                ? fmt::format(fmt::runtime(kComesBack), fmt::arg("command", all),
                                              fmt::arg("newcomer", words_of(job.command, true)))
                                : all + " --elastic";
  std::string escaped;  // inside the quotes of bash -c
  for (const char c : inner) escaped += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return head_of(job) +
         fmt::format("{}srun --mpi=none --no-kill --kill-on-bad-exit=0{} bash -c '{}'\n", kToken,
                     share, escaped);
}

}  // namespace heddle::cli
