#include "cli/local_processes.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <thread>

#include "cli/ended.h"
#include "support/temporary_folder.h"

namespace heddle::cli {
namespace {

using namespace std::chrono_literals;

constexpr const char* kFolder = "HEDDLE_TEST_RANK_FOLDER";

/// run_local_processes starts this program again: as a rank it waits for SIGUSR1 and then SIGTERM,
/// writing down what comes, and never gets as far as main.
const bool kIsRank = [] {
  const char* folder = std::getenv(kFolder);
  const char* rank = std::getenv("RANK");
  if (folder == nullptr || rank == nullptr) return false;
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGUSR1);
  sigaddset(&signals, SIGTERM);
  sigset_t inherited;
  sigprocmask(SIG_BLOCK, &signals, &inherited);
  const bool was_open = sigismember(&inherited, SIGTERM) == 0;
  std::ofstream note(std::string(folder) + "/rank-" + rank);
  note << (was_open ? "open " : "blocked ") << std::flush;
  for (int signal = 0; signal != SIGTERM;) {
    if (sigwait(&signals, &signal) == 0) note << signal << " " << std::flush;
  }
  std::_Exit(6);
  return true;
}();

std::string note_of(const TemporaryFolder& folder, int rank) {
  std::ifstream file(folder.path() / ("rank-" + std::to_string(rank)));
  return std::string(std::istreambuf_iterator<char>(file), {});
}

void wait_for_note(const TemporaryFolder& folder, const std::string& text) {
  for (int wait = 0; wait < 3000; ++wait) {
    if (note_of(folder, 0) == text && note_of(folder, 1) == text) return;
    std::this_thread::sleep_for(10ms);
  }
}

/// Whoever has a GPU alone reaches the others as NCCL finds best; two on one GPU are never of one
/// machine.
TEST(LocalProcesses, AreMachinesToNcclOnlyWhereTheyShareAGpu) {
  for (const int ranks : {1, 2, 4}) {
    for (int rank = 0; rank < ranks; ++rank) EXPECT_EQ(nccl_machine_of(rank, ranks, 4), "");
  }
  EXPECT_EQ(nccl_machine_of(1, 2, 0), "");
  for (const int gpus : {1, 2, 3}) {
    std::set<std::pair<std::string, int>> places;
    for (int rank = 0; rank < 8; ++rank) {
      EXPECT_NE(nccl_machine_of(rank, 8, gpus), "");
      places.emplace(nccl_machine_of(rank, 8, gpus), rank % gpus);
    }
    EXPECT_EQ(places.size(), 8u) << gpus;
    EXPECT_EQ(nccl_machine_of(0, 8, gpus), nccl_machine_of(gpus - 1, 8, gpus));
  }
}

TEST(LocalProcesses, GetTheSignalsOfTheOneThatStartedThem) {
  const TemporaryFolder folder;
  const pid_t parent = ::fork();
  ASSERT_GE(parent, 0);
  if (parent == 0) {
    ::setenv(kFolder, folder.path().c_str(), 1);
    try {
      run_local_processes(2);
    } catch (const Ended& end) {
      ::_exit(end.status);
    }
    ::_exit(1);
  }
  wait_for_note(folder, "open ");
  // The parent passes signals on once it has started all of them.
  std::this_thread::sleep_for(200ms);
  ::kill(parent, SIGUSR1);
  const std::string saved = "open " + std::to_string(SIGUSR1) + " ";
  wait_for_note(folder, saved);
  ::kill(parent, SIGTERM);
  int state = 0;
  ASSERT_EQ(::waitpid(parent, &state, 0), parent);
  EXPECT_TRUE(WIFEXITED(state)) << "killed by " << WTERMSIG(state);
  EXPECT_EQ(WEXITSTATUS(state), 6);
  const std::string stopped = saved + std::to_string(SIGTERM) + " ";
  EXPECT_EQ(note_of(folder, 0), stopped);
  EXPECT_EQ(note_of(folder, 1), stopped);
}

}  // namespace
}  // namespace heddle::cli
