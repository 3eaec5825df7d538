#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <iostream>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "cli/elastic.h"
#include "cli/ended.h"
#include "cli/launcher.h"
#include "cli/local_processes.h"
#include "cli/own_arguments.h"
#include "cli/slurm_script.h"
#include "cli/tcp_settings.h"
#include "cli/verb.h"
#include "cli/verbs.h"
#include "comm/tcp/tcp_socket.h"
#include "train/stop_signals.h"

namespace heddle::cli {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

/// For those who are left when the run is over.
constexpr auto kTimeToEnd = 8s;
constexpr auto kLook = 20ms;
constexpr auto kRestartsWithin = 10min;

struct LaunchArguments : SlurmJob {
  bool slurm = false;
  std::size_t most_restarts = 3;  // of one rank, within kRestartsWithin
};

/// The processes of a run whose ranks may be lost and replaced.
class Launched {
 public:
  explicit Launched(const LaunchArguments& arguments) : arguments_(arguments) {
    if (process_environment(kTokenVariable) == nullptr &&
        process_environment(kTokenFileVariable) == nullptr) {
      variables_.push_back(fmt::format("{}={}", kTokenVariable, make_token()));
    }
  }

  /// The status of the run.
  int run() {
    meeting_ = listen_on(0, arguments_.ranks, TcpReach::this_machine);
    for (int rank = 0; rank < arguments_.ranks; ++rank) start(rank);
    close(meeting_.socket);
    StopSignals signals(false);
    signals.pass_on([this](int signal) {
      // SIGTERM tells one rank to leave: all of them are to stop, with a checkpoint.
      pass(signal == SIGTERM ? SIGINT : signal);
      is_stopping_ = true;
    });
    wait_for_all();
    signals.pass_on([](int) {});
    return status();
  }

 private:
  static std::string make_token() {
    std::string text;
    for (int i = 0; i < 2; ++i) {
      for (const std::byte byte : make_nonce())
        text += fmt::format("{:02x}", std::to_integer<int>(byte));
    }
    return text;
  }

  std::vector<std::string> words_for(bool is_newcomer) const {
    std::vector<std::string> words = {own_arguments().front()};
    for (const std::string& word : arguments_.command) {
      // A newcomer finds what the others have done since.
      if (!is_newcomer || word != "--fresh") words.push_back(word);
    }
    words.emplace_back(is_newcomer ? "--join" : "--elastic");
    return words;
  }

  struct Process {
    int rank = 0;
    /// Of a newcomer: what it writes to when the others have let it in.
    Socket let_in = {};

    /// It began the run, or was let in.
    bool is_member() const { return !let_in || is_readable(let_in.get(), Clock::now()); }
  };

  void start(int rank) {
    keep(start_rank({.rank = rank,
                     .ranks = arguments_.ranks,
                     .meeting = meeting_,
                     .arguments = words_for(false),
                     .variables = variables_}),
         {.rank = rank});
  }

  void start_newcomer(int rank) {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) {
      fail(ErrorCode::resources, "a pipe to another process of rank {} could not be made", rank);
    }
    Socket let_in(ends[0]);
    const Socket its_end(ends[1]);
    keep(start_rank({.rank = rank,
                     .ranks = arguments_.ranks,
                     .meeting = {-1, meeting_.port},
                     .let_in = its_end.get(),
                     .arguments = words_for(true),
                     .variables = variables_}),
         {.rank = rank, .let_in = std::move(let_in)});
  }

  void keep(pid_t child, Process process) {
    const std::lock_guard lock(mutex_);
    running_[child] = std::move(process);
  }

  void pass(int signal) {
    const std::lock_guard lock(mutex_);
    for (const auto& [number, process] : running_) kill(number, signal);
  }

  void wait_for_all() {
    // Not timed: a terminal may have stopped all of us together meanwhile.
    int looks_since_over = 0;
    while (!running_.empty()) {
      int state = 0;
      const pid_t changed = waitpid(-1, &state, WNOHANG | WUNTRACED | WCONTINUED);
      if (changed > 0 && running_.contains(changed)) {
        if (WIFSTOPPED(state)) frozen_.insert(changed);
        if (!WIFSTOPPED(state)) frozen_.erase(changed);
        if (WIFEXITED(state) || WIFSIGNALED(state)) note_end(changed, state);
        continue;
      }
      const bool is_over = has_ended_well() || are_left_frozen();
      looks_since_over = is_over ? looks_since_over + 1 : 0;
      // Somebody who waits to be let in would do so for long, and who is frozen for ever.
      if (looks_since_over > kTimeToEnd / kLook) pass(SIGKILL);
      std::this_thread::sleep_for(kLook);
    }
  }

  void note_end(pid_t process, int state) {
    int rank = 0;
    {
      const std::lock_guard lock(mutex_);
      rank = running_.extract(process).mapped().rank;
    }
    const int status = status_of_rank(state);
    statuses_.push_back(status);
    if (is_stopping_ || has_ended_well() || has_failed_ || running_.empty()) return;
    if (std::ranges::none_of(running_, [](const auto& one) { return one.second.is_member(); })) {
      return end_waiting();
    }
    if (status == static_cast<int>(ErrorCode::peer) && arguments_.restart) replace(rank);
  }

  /// They would wait for each other.
  void end_waiting() {
    has_failed_ = true;
    log_line(LogLevel::error,
             fmt::format("no rank is left that has the run: {} that wait{} to be let in {} ended; "
                         "the same command goes on from the newest checkpoint",
                         running_.size(), running_.size() == 1 ? "s" : "",
                         running_.size() == 1 ? "is" : "are"));
    pass(SIGKILL);
  }

  void replace(int rank) {
    const auto now = Clock::now();
    auto& restarts = restarts_[rank];
    while (!restarts.empty() && now - restarts.front() > kRestartsWithin) restarts.pop_front();
    if (restarts.size() >= arguments_.most_restarts) {
      log_warn(
          "the process of rank {} was lost after {} restarts within ten minutes: no other is "
          "started",
          rank, arguments_.most_restarts);
      return;
    }
    restarts.push_back(now);
    log_info("the process of rank {} is lost; another is started, to join the others", rank);
    start_newcomer(rank);
  }

  /// Nobody is left who could end by himself. Where all are frozen together none has ended.
  bool are_left_frozen() const { return !statuses_.empty() && frozen_.size() == running_.size(); }

  bool has_ended_well() const { return std::ranges::count(statuses_, 0) > 0; }

  /// Some have come to the end; the run has failed on some; most were stopped together; else what
  /// the first ended with. One that was told to leave ends as one that is stopped, and does not
  /// speak for the others.
  int status() const {
    constexpr int kStopped = static_cast<int>(ErrorCode::stopped);
    constexpr int kLost = static_cast<int>(ErrorCode::peer);
    if (has_ended_well()) return 0;
    const auto stopped = std::ranges::count(statuses_, kStopped);
    if (is_stopping_ && stopped > 0) return kStopped;
    const auto failed = std::ranges::find_if(
        statuses_, [](int status) { return status != kStopped && status != kLost; });
    if (failed != statuses_.end()) return *failed;
    return stopped >= std::ranges::count(statuses_, kLost) ? kStopped : kLost;
  }

  const LaunchArguments& arguments_;
  std::vector<std::string> variables_;
  TcpListener meeting_;
  std::mutex mutex_;
  std::map<pid_t, Process> running_;  // not yet waited for
  std::set<pid_t> frozen_;            // of these, by SIGSTOP
  std::map<int, std::deque<Clock::time_point>> restarts_;
  std::vector<int> statuses_;  // in the order in which they ended
  bool has_failed_ = false;    // nobody is left who has it
  std::atomic<bool> is_stopping_ = false;
};

void check(const LaunchArguments& arguments) {
  if (arguments.command.front() != "train") {
    throw Error(ErrorCode::usage, "heddle launch starts the ranks of a training run",
                "heddle launch --ranks 4 -- train RUN.toml");
  }
  if (arguments.slurm) return;
  if (arguments.nodes > 0 || arguments.cpus > 0 || arguments.gpus || arguments.plain) {
    throw Error(ErrorCode::usage, "--nodes, --cpus, --gpus and --plain are about a job of Slurm's",
                "add --slurm, or leave them out");
  }
  const Launcher launcher = detect_launcher(process_environment);
  if (launcher.size == 1) return;
  throw Error(ErrorCode::usage,
              fmt::format("{} has made this process one of {} ranks, and heddle launch would start "
                          "more",
                          launcher.name, launcher.size),
              "let it start heddle train RUN.toml --elastic, or unset its variables");
}

void run(const LaunchArguments& arguments) {
  check(arguments);
  if (arguments.slurm) {
    std::cout << slurm_script(arguments);
    return;
  }
  allow_open_files(arguments.ranks);
  throw Ended{Launched(arguments).run()};
}

}  // namespace

void add_launch(Verb app) {
  Verb verb = app.add_verb(
      "launch", "start the ranks of a run on this machine that goes on when some are lost");
  auto arguments = std::make_shared<LaunchArguments>();
  verb.add_option("--ranks", arguments->ranks, "processes to start").show_default().range(2, 4096);
  verb.add_flag("--restart", arguments->restart, "start lost ranks again, to join the others");
  verb.add_option("--most-restarts", arguments->most_restarts,
                  "of one rank within ten minutes; then no other is started in its place")
      .show_default()
      .range(1, 1000000);
  verb.add_flag("--slurm", arguments->slurm, "start nothing; print a job script for Slurm");
  verb.add_option("--nodes", arguments->nodes, "of the job; each has as many ranks").positive();
  verb.add_option("--cpus", arguments->cpus, "processors for each rank of the job").positive();
  verb.add_flag("--gpus", arguments->gpus,
                "a GPU for each rank of the job (run.device = \"cuda\")");
  verb.add_flag("--plain", arguments->plain, "a job that ends when a rank is lost, on any mesh");
  verb.add_option("COMMAND", arguments->command, "what they run, behind --: train RUN.toml ...")
      .required();
  verb.footer("heddle launch --ranks 4 --restart -- train examples/01_tiny_cpu/run.toml");
  verb.callback([arguments] { run(*arguments); });
}

}  // namespace heddle::cli
