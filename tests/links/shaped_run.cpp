// shaped_run RANKS [option ...] -- COMMAND [argument ...]
// Runs the command once for each rank, every rank in a network namespace of its own, joined by
// links of given rate, delay, jitter and loss; README.md beside this file says how. The status is 0
// when all ranks end with 0, else that of the first rank that does not; 77 where links cannot be
// made.
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "base/error.h"
#include "links/network.h"

namespace heddle::links {
namespace {

constexpr int kSkipped = 77;  // to CTest: the test was not done
constexpr std::chrono::seconds kPatience{5};

struct Request {
  NetworkOptions network;
  bool is_controlled = false;  ///< statements come from standard input
  std::vector<std::string> command;
};

template <class Number>
Number number_of(const std::string& what, const std::string& text) {
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) {
    fail(ErrorCode::usage, "{} '{}' is not a number", what, text);
  }
  return number;
}

/// An option and the words after it, up to the next option.
struct Option {
  std::string name, words;
};

Request request_of(const std::vector<std::string>& arguments) {
  const auto is_option = [](const std::string& word) { return word.rfind("--", 0) == 0; };
  if (arguments.empty()) {
    throw Error(ErrorCode::usage, "nothing to run",
                "shaped_run RANKS [--link rate=100mbit delay=25ms ...] -- COMMAND ...");
  }
  Request request;
  request.network.ranks = number_of<int>("RANKS", arguments[0]);
  std::size_t at = 1;
  while (at < arguments.size() && arguments[at] != "--") {
    Option option{arguments[at++], ""};
    if (!is_option(option.name)) {
      fail(ErrorCode::usage, "'{}' is not an option: '--' goes before the command", option.name);
    }
    for (; at < arguments.size() && !is_option(arguments[at]); ++at) {
      option.words += (option.words.empty() ? "" : " ") + arguments[at];
    }
    if (option.name == "--mtu") {
      request.network.mtu = number_of<int>("--mtu", option.words);
    } else if (option.name == "--seed") {
      request.network.seed = number_of<std::uint64_t>("--seed", option.words);
    } else if (option.name == "--rest") {
      request.network.rest = std::chrono::microseconds(number_of<unsigned>("--rest", option.words));
    } else if (option.name == "--sysctl") {
      request.network.sysctls.push_back(option.words);
    } else if (option.name == "--control" && option.words.empty()) {
      request.is_controlled = true;
    } else {
      request.network.statements.push_back(option.name.substr(2) + " " + option.words);
    }
  }
  for (++at; at < arguments.size(); ++at) request.command.push_back(arguments[at]);
  if (request.command.empty()) fail(ErrorCode::usage, "no command to run: it goes after '--'");
  return request;
}

/// The ranks' processes, each the head of a process group, so that all it started ends with it.
class Ranks {
 public:
  Ranks(const Network& network, const Request& request) : alive_(request.network.ranks) {
    for (int rank = 0; rank < request.network.ranks; ++rank) start(network, request, rank);
  }
  ~Ranks() { signal_all(SIGKILL); }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  bool any_left() const { return alive_ > 0; }
  int status() const {
    for (const int status : statuses_) {
      if (status != 0) return status;
    }
    return 0;
  }
  void signal_all(int signal) const {
    for (const pid_t group : groups_) ::kill(-group, signal);
  }
  void collect() {
    int how = 0;
    for (pid_t ended = 0; (ended = ::waitpid(-1, &how, WNOHANG)) > 0;) {
      for (std::size_t rank = 0; rank < groups_.size(); ++rank) {
        if (groups_[rank] != ended) continue;
        statuses_[rank] = WIFSIGNALED(how) ? 128 + WTERMSIG(how) : WEXITSTATUS(how);
        --alive_;
        if (statuses_[rank] != 0) {
          fmt::print(stderr, "shaped_run: rank {} ended with status {}\n", rank, statuses_[rank]);
        }
      }
    }
  }

 private:
  void start(const Network& network, const Request& request, int rank) {
    const auto set = [](const char* name, const std::string& value) {
      ::setenv(name, value.c_str(), 1);
    };
    set("RANK", std::to_string(rank));
    set("WORLD_SIZE", std::to_string(request.network.ranks));
    set("LOCAL_RANK", "0");
    set("LOCAL_WORLD_SIZE", "1");
    set("MASTER_ADDR", Network::address(0));
    set("MASTER_PORT", "29511");
    std::vector<char*> command;
    for (const auto& word : request.command) command.push_back(const_cast<char*>(word.c_str()));
    command.push_back(nullptr);
    const pid_t child = ::fork();
    if (child < 0) fail(ErrorCode::resources, "no process for rank {}", rank);
    if (child == 0) become(network.namespace_of(rank), command.data());
    ::setpgid(child, child);  // by the child as well: whoever comes first
    groups_.push_back(child);
    statuses_.push_back(0);
  }

  /// System calls only: another thread moves packets.
  [[noreturn]] static void become(int space, char* const* command) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::setpgid(0, 0);
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    ::dup2(::open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
    if (::setns(space, CLONE_NEWNET) == 0) ::execvp(command[0], command);
    std::perror(command[0]);
    ::_exit(127);
  }

  int alive_;
  std::vector<pid_t> groups_;
  std::vector<int> statuses_;
};

/// Lines of standard input, each a statement for the links.
class Control {
 public:
  /// False at the end of the input.
  bool take(Network& network) {
    std::array<char, 4096> block;
    const ssize_t bytes = ::read(STDIN_FILENO, block.data(), block.size());
    if (bytes > 0) text_.append(block.data(), bytes);
    for (auto end = text_.find('\n'); end != std::string::npos; end = text_.find('\n')) {
      try {
        if (end > 0) network.apply(text_.substr(0, end));
      } catch (const Error& error) {
        fmt::print(stderr, "shaped_run: {}\n", error.what());
      }
      text_.erase(0, end + 1);
    }
    return bytes > 0;
  }

 private:
  std::string text_;
};

/// Until all ranks have ended; a signal ends them first. Returns the status of the program.
int watch(Network& network, Ranks& ranks, bool is_controlled, int signals) {
  using Clock = std::chrono::steady_clock;
  std::array<pollfd, 2> watched = {
      {{signals, POLLIN, 0}, {is_controlled ? STDIN_FILENO : -1, POLLIN, 0}}};
  Control control;
  int ended_by = 0;
  Clock::time_point kill_at = Clock::time_point::max();
  while (ranks.any_left()) {
    ::poll(watched.data(), watched.size(), ended_by == 0 ? -1 : 100);
    if (Clock::now() >= kill_at) ranks.signal_all(SIGKILL);
    if (watched[1].revents != 0 && !control.take(network)) watched[1].fd = -1;
    if (watched[0].revents != 0) {
      signalfd_siginfo signal{};
      if (::read(signals, &signal, sizeof(signal)) != sizeof(signal)) continue;
      if (signal.ssi_signo != SIGCHLD && ended_by == 0) {
        ended_by = static_cast<int>(signal.ssi_signo);
        ranks.signal_all(SIGTERM);
        kill_at = Clock::now() + kPatience;
      }
    }
    ranks.collect();
  }
  return ended_by != 0 ? 128 + ended_by : ranks.status();
}

int run(const std::vector<std::string>& arguments) {
  const pid_t parent = ::getppid();
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  const Request request = request_of(arguments);
  if (const auto missing = Network::missing()) {
    fmt::print(stderr, "shaped_run: skipped: {}\n", *missing);
    return kSkipped;
  }
  sigset_t handled;
  sigemptyset(&handled);
  for (const int signal : {SIGCHLD, SIGTERM, SIGINT, SIGHUP}) sigaddset(&handled, signal);
  ::pthread_sigmask(SIG_BLOCK, &handled, nullptr);  // before there are threads, which inherit it
  const Descriptor signals(::signalfd(-1, &handled, SFD_CLOEXEC));
  if (::getppid() != parent) return 128 + SIGTERM;  // it died before prctl
  Network network(request.network);
  Ranks ranks(network, request);
  return watch(network, ranks, request.is_controlled, signals.get());
}

}  // namespace
}  // namespace heddle::links

int main(int count, char** arguments) {
  try {
    return heddle::links::run({arguments + 1, arguments + count});
  } catch (const heddle::Error& error) {
    fmt::print(stderr, "shaped_run: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}
