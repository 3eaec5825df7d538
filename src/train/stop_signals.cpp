#include "train/stop_signals.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/log.h"
#include "checkpoint/catalog.h"

namespace heddle {
namespace {

struct Handled {
  int number;
  const char* name;
};
constexpr std::array<Handled, 5> kHandled = {{{SIGINT, "SIGINT"},
                                              {SIGTERM, "SIGTERM"},
                                              {SIGHUP, "SIGHUP"},
                                              {SIGUSR2, "SIGUSR2"},
                                              {SIGUSR1, "SIGUSR1"}}};
constexpr const char* kEndedAtOnce = "ended at once by ";
constexpr std::chrono::milliseconds kOneSignal{500};

std::atomic<int> stop_signal{0};  // the last that counted
std::atomic<int> checkpoints{0};  // that were asked for
std::atomic<pthread_t> watching;

/// Under nohup: and what is ignored must not be blocked, or it would be waited for.
bool is_hangup_ignored() {
  struct sigaction action {};
  sigaction(SIGHUP, nullptr, &action);
  return action.sa_handler == SIG_IGN;
}

sigset_t handled_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const Handled& one : kHandled) sigaddset(&set, one.number);
  if (is_hangup_ignored()) sigdelset(&set, SIGHUP);
  return set;
}

/// For threads that do not block the signals: such as were there before us.
void pass_to_watcher(int signal) {
  const int error = errno;
  pthread_kill(watching, signal);
  errno = error;
}

/// On a thread of its own: a standard error that nobody empties must not hold up the watcher.
std::future<void> say(LogLevel level, std::string line) {
  std::packaged_task<void()> task([level, line = std::move(line)] { log_line(level, line); });
  std::future<void> said = task.get_future();
  std::thread(std::move(task)).detach();
  return said;
}

/// The thread that takes the signals and answers them. It computes nothing: runs whose handler
/// interrupted a matrix product were seen to abort, in a free() inside oneDNN, one in twenty.
class Watcher {
 public:
  Watcher() {
    thread_ = std::thread([this] { take_signals(); });
    watching = thread_.native_handle();
  }
  ~Watcher() {
    is_quitting_ = true;
    pthread_kill(thread_.native_handle(), SIGUSR1);
    thread_.join();
  }
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  void set_place(const RunPlace& place) {
    const std::lock_guard lock(mutex_);
    place_ = place;
  }
  void let_speak() {
    const std::lock_guard lock(mutex_);
    speaks_ = true;
  }
  void pass_on(std::function<void(int)> to) {
    const std::lock_guard lock(mutex_);
    pass_on_ = std::move(to);
  }
  using Tell = std::function<void(const std::string&)>;
  void add(const Tell* tell) {
    const std::lock_guard lock(mutex_);
    tells_.push_back(tell);
  }
  /// When it returns, `tell` is not being called.
  void remove(const Tell* tell) {
    const std::lock_guard lock(mutex_);
    std::erase(tells_, tell);
  }

 private:
  using Clock = std::chrono::steady_clock;

  void take_signals() {
    const sigset_t signals = handled_signals();
    for (int signal = 0;;) {
      if (sigwait(&signals, &signal) != 0) continue;
      if (is_quitting_) return;
      const std::lock_guard lock(mutex_);
      if (pass_on_) {
        pass_on_(signal);
      } else if (signal == SIGUSR1) {
        ++checkpoints;
        if (speaks_) say(LogLevel::info, checkpoint_signal_line(place_));
      } else {
        answer_stop(signal);
      }
    }
  }

  void answer_stop(int signal) {
    const bool is_first = stop_signal == 0;
    if (!is_first && Clock::now() - counted_at_ < kOneSignal) return;
    counted_at_ = Clock::now();
    stop_signal = signal;
    if (place_.doing == RunPlace::Doing::done) return;
    if (!is_first || place_.doing == RunPlace::Doing::starting) end_at_once(signal);
    if (speaks_) say(LogLevel::info, first_signal_line(signal, place_));
  }

  [[noreturn]] void end_at_once(int signal) {
    const std::string line = ended_at_once_line(signal, place_);
    if (speaks_) {
      say(LogLevel::warn, line).wait_for(std::chrono::seconds(1));
    }
    for (const Tell* tell : tells_) (*tell)(line);
    std::_Exit(status_of_signal(signal));
  }

  std::atomic<bool> is_quitting_ = false;
  std::mutex mutex_;
  RunPlace place_;
  bool speaks_ = false;
  std::function<void(int)> pass_on_;
  std::vector<const Tell*> tells_;
  Clock::time_point counted_at_;
  std::thread thread_;
};

/// What the objects of a process share.
struct Shared {
  std::mutex mutex;
  int objects = 0;
  std::unique_ptr<Watcher> watcher;
  std::array<struct sigaction, kHandled.size()> before{};
};

Shared& shared() {
  static Shared instance;
  return instance;
}

void handle_signals(Shared& all) {
  struct sigaction action {};
  action.sa_handler = pass_to_watcher;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (std::size_t i = 0; i < kHandled.size(); ++i) {
    sigaction(kHandled[i].number, nullptr, &all.before[i]);
    if (kHandled[i].number == SIGHUP && is_hangup_ignored()) continue;
    sigaction(kHandled[i].number, &action, nullptr);
  }
}

std::string what_comes_first(const RunPlace& place) {
  switch (place.doing) {
    case RunPlace::Doing::stepping:
      return place.has_sites ? std::string("going on until sites meet next")
                             : fmt::format("finishing step {}", place.step + 1);
    case RunPlace::Doing::evaluating:
      return fmt::format("giving up the evaluation of step {}", place.step);
    case RunPlace::Doing::sampling:
      return fmt::format("finishing the sample of step {}", place.step);
    case RunPlace::Doing::saving:
      return fmt::format("finishing the checkpoint of step {}", place.step);
    // Between two steps it is open whether the next one begins before the signal is seen.
    default: return "finishing the step under way";
  }
}

std::string steps(std::int64_t count) {
  return fmt::format("{} step{}", count, count == 1 ? "" : "s");
}

}  // namespace

StopSignals::StopSignals(bool speaks, std::function<void(const std::string&)> tell_others)
    : tell_others_(std::move(tell_others)) {
  const sigset_t handled = handled_signals();
  pthread_sigmask(SIG_BLOCK, &handled, &mask_before_);  // also of threads that this one starts
  Shared& all = shared();
  const std::lock_guard lock(all.mutex);
  if (all.objects++ == 0) {
    stop_signal = 0;
    checkpoints = 0;
    all.watcher = std::make_unique<Watcher>();
    handle_signals(all);
  }
  if (speaks) all.watcher->let_speak();
  if (tell_others_) all.watcher->add(&tell_others_);
}

StopSignals::~StopSignals() {
  Shared& all = shared();
  const std::lock_guard lock(all.mutex);
  all.watcher->remove(&tell_others_);
  if (--all.objects == 0) {
    for (std::size_t i = 0; i < kHandled.size(); ++i) {
      sigaction(kHandled[i].number, &all.before[i], nullptr);
    }
    all.watcher.reset();
  }
  pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
}

void StopSignals::pass_on(std::function<void(int signal)> to) {
  shared().watcher->pass_on(std::move(to));
}

void StopSignals::forget_in_child() {
  for (const Handled& one : kHandled) {
    struct sigaction action {};
    action.sa_handler = SIG_DFL;
    if (one.number != SIGHUP || !is_hangup_ignored()) sigaction(one.number, &action, nullptr);
  }
  const sigset_t handled = handled_signals();
  sigprocmask(SIG_UNBLOCK, &handled, nullptr);
}

void StopSignals::set_place(const RunPlace& place) { shared().watcher->set_place(place); }

int StopSignals::stop_asked() const { return stop_signal; }

int StopSignals::checkpoints_asked() const { return checkpoints; }

const char* signal_name(int signal) {
  const auto* found = std::find_if(kHandled.begin(), kHandled.end(),
                                   [&](const Handled& one) { return one.number == signal; });
  return found == kHandled.end() ? "a signal" : found->name;
}

int status_of_signal(int signal) { return 128 + signal; }

std::optional<int> status_of_rank_ended_at_once(const std::string& failure) {
  for (const auto& [number, name] : kHandled) {
    if (failure.find(std::string(kEndedAtOnce) + name) != std::string::npos) {
      return status_of_signal(number);
    }
  }
  return std::nullopt;
}

std::string first_signal_line(int signal, const RunPlace& place) {
  using Doing = RunPlace::Doing;
  if (place.doing == Doing::ending) {
    return fmt::format("{}: the run is ending; once more ends it at once, without a report",
                       signal_name(signal));
  }
  if (place.may_leave && signal == SIGTERM) {
    return fmt::format(
        "SIGTERM: {}, then leaving the run to the others, or saving and ending where all are told; "
        "once more ends this rank at once",
        what_comes_first(place));
  }
  const std::string then = place.doing == Doing::saving ? "ending"
                           : place.saves                ? "saving"
                                         : "ending without saving (checkpoint.on_exit = false)";
  const std::string loses = place.saved < 0 ? "all steps, since there is no checkpoint"
                            : place.saved < place.step
                                ? "the steps since " + checkpoint_name(place.saved)
                                : "what is not finished";
  return fmt::format("{}: {}, then {}; once more ends at once and loses {}", signal_name(signal),
                     what_comes_first(place), then, loses);
}

std::string ended_at_once_line(int signal, const RunPlace& place) {
  const std::int64_t lost = place.step - std::max<std::int64_t>(place.saved, 0);
  const std::string loss =
      place.doing == RunPlace::Doing::starting ? "no step was made yet, nothing is lost"
      : lost == 0                              ? "no finished step is lost"
      : place.saved < 0 ? fmt::format("{} made and lost, there is no checkpoint", steps(lost))
                        : fmt::format("{} since the checkpoint at {} {} lost", steps(lost),
                                      place.saved, lost == 1 ? "is" : "are");
  return fmt::format("{}{}: {}", kEndedAtOnce, signal_name(signal), loss);
}

std::string checkpoint_signal_line(const RunPlace& place) {
  switch (place.doing) {
    case RunPlace::Doing::starting:
      return "SIGUSR1: no step was made yet, there is nothing to save";
    case RunPlace::Doing::stepping:
      if (place.has_sites) return "SIGUSR1: saving where sites meet next, then going on";
      return fmt::format("SIGUSR1: finishing step {}, then saving and going on", place.step + 1);
    case RunPlace::Doing::recording:
      return "SIGUSR1: finishing the step under way, then saving and going on";
    case RunPlace::Doing::ending:
    case RunPlace::Doing::done: return "SIGUSR1: the run is ending";
    default: return fmt::format("SIGUSR1: saving step {} and going on", place.step);
  }
}

}  // namespace heddle
