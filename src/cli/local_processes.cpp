#include "cli/local_processes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "cli/ended.h"
#include "cli/own_arguments.h"
#include "comm/tcp_listener.h"
#include "tensor/device.h"
#include "train/stop_signals.h"

namespace heddle::cli {
namespace {

constexpr std::chrono::seconds kGrace{8};

/// Between fork and exec: nothing but calls of the system. `inherited`: files that stay open.
[[noreturn]] void become(char* const* arguments, char* const* environment, pid_t parent,
                         const std::array<int, 2>& inherited) {
  for (const int file : inherited) {
    if (file >= 0) fcntl(file, F_SETFD, 0);
  }
  StopSignals::forget_in_child();
  prctl(PR_SET_PDEATHSIG, SIGTERM);  // who is killed takes the ranks along
  if (getppid() != parent) _exit(static_cast<int>(ErrorCode::peer));
  execve("/proc/self/exe", arguments, environment);
  _exit(static_cast<int>(ErrorCode::resources));
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

std::string nccl_machine_of(int rank, int ranks, int gpus) {
  return gpus < 1 || ranks <= gpus ? "" : fmt::format("heddle-{}", rank / gpus);
}

pid_t start_rank(const RankProcess& process) {
  std::vector<std::string> arguments = process.arguments, variables;
  for (char** at = environ; *at != nullptr; ++at) variables.emplace_back(*at);
  const pid_t parent = getpid();
  const int listening = process.rank == 0 ? process.meeting.socket : -1;
  variables.push_back(fmt::format("RANK={}", process.rank));
  variables.push_back(fmt::format("LOCAL_RANK={}", process.rank));
  variables.push_back(fmt::format("WORLD_SIZE={}", process.ranks));
  variables.push_back("MASTER_ADDR=127.0.0.1");
  // Ranks take the next.
  variables.push_back(fmt::format("MASTER_PORT={}", process.meeting.port - 1));
  variables.push_back(fmt::format("{}={}", kListeningVariable, listening));
  if (process.let_in >= 0) {
    variables.push_back(fmt::format("{}={}", kLetInVariable, process.let_in));
  }
  const std::string machine = nccl_machine_of(process.rank, process.ranks, cuda_device_count());
  if (!machine.empty()) variables.push_back(fmt::format("NCCL_HOSTID={}-{}", machine, parent));
  variables.insert(variables.end(), process.variables.begin(), process.variables.end());
  const std::vector<char*> argument_pointers = pointers_to(arguments);
  const std::vector<char*> variable_pointers = pointers_to(variables);
  const pid_t child = fork();
  if (child == 0) {
    become(argument_pointers.data(), variable_pointers.data(), parent, {listening, process.let_in});
  }
  if (child < 0) throw Error(ErrorCode::resources, "a process for a rank could not be started");
  return child;
}

int status_of_rank(int state) {
  if (WIFEXITED(state)) return WEXITSTATUS(state);
  const bool was_asked = WTERMSIG(state) == SIGINT || WTERMSIG(state) == SIGTERM;
  return was_asked ? status_of_signal(WTERMSIG(state)) : static_cast<int>(ErrorCode::peer);
}

void run_local_processes(int ranks) {
  // Rank 0 gets the socket rather than a port that was free: others may take it meanwhile, even the
  // ranks that call it.
  const TcpListener meeting = listen_on(0, ranks, TcpReach::this_machine);
  std::mutex mutex;
  std::vector<pid_t> running;  // not yet waited for
  for (int rank = 0; rank < ranks; ++rank) {
    running.push_back(start_rank(
        {.rank = rank, .ranks = ranks, .meeting = meeting, .arguments = own_arguments()}));
  }
  close(meeting.socket);
  StopSignals signals(false);
  signals.pass_on([&](int signal) {
    const std::lock_guard lock(mutex);
    for (const pid_t process : running) kill(process, signal);
  });
  using Clock = std::chrono::steady_clock;
  int status = 0;
  Clock::time_point failed_at{};
  while (!running.empty()) {
    int state = 0;
    std::unique_lock lock(mutex);
    const pid_t ended = waitpid(-1, &state, WNOHANG);
    if (ended > 0 && std::erase(running, ended) > 0) {
      if (status == 0 && status_of_rank(state) != 0) {
        status = status_of_rank(state);
        failed_at = Clock::now();
      }
      continue;
    }
    if (status != 0 && Clock::now() - failed_at > kGrace) {
      for (const pid_t process : running) kill(process, SIGKILL);
    }
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  signals.pass_on([](int) {});
  throw Ended{status};
}

}  // namespace heddle::cli
