#include "cli/local_processes.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/ended.h"
#include "cli/own_arguments.h"
#include "comm/tcp_listener.h"

namespace heddle::cli {
namespace {

constexpr std::chrono::seconds kGrace{8};

/// Between fork and exec: nothing but calls of the system. `inherited`: a file that stays open.
[[noreturn]] void become(char* const* arguments, char* const* environment, pid_t parent,
                         int inherited) {
  if (inherited >= 0) fcntl(inherited, F_SETFD, 0);
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

pid_t start(int rank, int ranks, const TcpListener& meeting, std::vector<std::string> arguments) {
  std::vector<std::string> variables;
  for (char** at = environ; *at != nullptr; ++at) variables.emplace_back(*at);
  const pid_t parent = getpid();
  variables.push_back(fmt::format("RANK={}", rank));
  variables.push_back(fmt::format("LOCAL_RANK={}", rank));
  variables.push_back(fmt::format("WORLD_SIZE={}", ranks));
  variables.push_back("MASTER_ADDR=127.0.0.1");
  variables.push_back(fmt::format("MASTER_PORT={}", meeting.port - 1));  // ranks take the next
  variables.push_back(fmt::format("{}={}", kListeningVariable, rank == 0 ? meeting.socket : -1));
  variables.push_back(fmt::format("NCCL_HOSTID=heddle-{}-{}", parent, rank));
  const std::vector<char*> argument_pointers = pointers_to(arguments);
  const std::vector<char*> variable_pointers = pointers_to(variables);
  const pid_t child = fork();
  if (child == 0) {
    become(argument_pointers.data(), variable_pointers.data(), parent,
           rank == 0 ? meeting.socket : -1);
  }
  if (child < 0) throw Error(ErrorCode::resources, "a process for a rank could not be started");
  return child;
}

int status_of(int state) {
  return WIFEXITED(state) ? WEXITSTATUS(state) : static_cast<int>(ErrorCode::peer);
}

std::atomic<int> to_parent{-1};  // a pipe; a handler can reach nothing else

/// The signals that a run answers (train/stop_signals.h), as they come, for the ranks.
class SignalsToPassOn {
 public:
  SignalsToPassOn() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw Error(ErrorCode::resources, "no pipe for signals");
    from_handler_ = ends[0];
    to_parent = ends[1];
    struct sigaction action {};
    action.sa_handler = [](int signal) {
      const int error = errno;
      const char number = static_cast<char>(signal);
      [[maybe_unused]] const ssize_t written = ::write(to_parent, &number, 1);
      errno = error;
    };
    action.sa_flags = SA_RESTART;
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) {
      struct sigaction before {};
      sigaction(signal, nullptr, &before);
      if (signal != SIGHUP || before.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);
    }
  }
  /// Stays as it is: the process is about to end.
  ~SignalsToPassOn() = default;
  SignalsToPassOn(const SignalsToPassOn&) = delete;
  SignalsToPassOn& operator=(const SignalsToPassOn&) = delete;

  /// The next one, or 0 when none comes in time.
  int wait(std::chrono::milliseconds limit) const {
    pollfd pipe{from_handler_, POLLIN, 0};
    char number = 0;
    if (::poll(&pipe, 1, static_cast<int>(limit.count())) <= 0) return 0;
    return ::read(from_handler_, &number, 1) == 1 ? number : 0;
  }

 private:
  int from_handler_ = -1;
};

}  // namespace

void run_local_processes(int ranks) {
  // Rank 0 gets the socket rather than a port that was free: others may take it meanwhile, even the
  // ranks that call it.
  const TcpListener meeting = listen_on(0, ranks);
  const SignalsToPassOn signals;
  std::vector<pid_t> running;
  for (int rank = 0; rank < ranks; ++rank) {
    running.push_back(start(rank, ranks, meeting, own_arguments()));
  }
  close(meeting.socket);
  using Clock = std::chrono::steady_clock;
  int status = 0;
  Clock::time_point failed_at{};
  while (!running.empty()) {
    int state = 0;
    const pid_t ended = waitpid(-1, &state, WNOHANG);
    if (ended > 0 && std::erase(running, ended) > 0) {
      if (status == 0 && status_of(state) != 0) {
        status = status_of(state);
        failed_at = Clock::now();
      }
      continue;
    }
    if (status != 0 && Clock::now() - failed_at > kGrace) {
      for (const pid_t process : running) kill(process, SIGKILL);
    }
    if (const int signal = signals.wait(std::chrono::milliseconds(20)); signal != 0) {
      for (const pid_t process : running) kill(process, signal);
    }
  }
  throw Ended{status};
}

}  // namespace heddle::cli
