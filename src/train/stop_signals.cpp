#include "train/stop_signals.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
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
constexpr std::int64_t kOneSignal = 500'000'000;  // nanoseconds

/// All that a handler can reach.
std::atomic<int> stop_signal{0};  // the last that counted
std::atomic<int> stops{0};        // that counted
std::atomic<int> checkpoints{0};  // that were asked for
std::atomic<std::int64_t> counted_at{0};
std::atomic<int> to_watcher{-1};  // a pipe

std::int64_t now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

/// Says what came to the thread that may do more than a handler.
void tell_watcher(char what) {
  [[maybe_unused]] const ssize_t written = ::write(to_watcher, &what, 1);
}

void on_signal(int signal) {
  const int error = errno;
  if (signal == SIGUSR1) {
    ++checkpoints;
    tell_watcher('c');
  } else if (stops == 0 || now() - counted_at > kOneSignal) {
    counted_at = now();
    stop_signal = signal;
    const int count = ++stops;
    if (count > 2) _exit(status_of_signal(signal));  // whatever keeps the watcher from doing it
    tell_watcher(count == 1 ? '1' : '2');
  }
  errno = error;
}

/// Answers signals, on a thread of its own: a step may take minutes, and a handler may not print.
class Watcher {
 public:
  Watcher() {
    int ends[2];
    is_open_ = ::pipe2(ends, O_CLOEXEC) == 0;
    if (!is_open_) return;  // then signals are noticed, and not answered
    from_handler_ = ends[0];
    to_watcher = ends[1];
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { answer(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  ~Watcher() {
    if (!is_open_) return;
    tell_watcher('q');
    thread_.join();
    ::close(to_watcher.exchange(-1));
    ::close(from_handler_);
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
  void answer() {
    for (char what = 0; what != 'q';) {
      if (::read(from_handler_, &what, 1) != 1) {
        if (errno == EINTR) continue;
        return;
      }
      const std::lock_guard lock(mutex_);
      if (place_.doing == RunPlace::Doing::done) continue;
      if (what == 'c' && speaks_) log_info("{}", checkpoint_signal_line(place_));
      if (what == '2' || (what == '1' && place_.doing == RunPlace::Doing::starting)) end_at_once();
      if (what == '1' && speaks_) log_info("{}", first_signal_line(stop_signal, place_));
    }
  }

  [[noreturn]] void end_at_once() {
    const std::string line = ended_at_once_line(stop_signal, place_);
    if (speaks_) {
      set_status_line("", 0);
      log_line(LogLevel::warn, line);
    }
    for (const Tell* tell : tells_) (*tell)(line);
    std::_Exit(status_of_signal(stop_signal));
  }

  bool is_open_ = false;
  int from_handler_ = -1;
  std::mutex mutex_;
  RunPlace place_;
  bool speaks_ = false;
  std::vector<const Tell*> tells_;
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
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (std::size_t i = 0; i < kHandled.size(); ++i) {
    sigaction(kHandled[i].number, nullptr, &all.before[i]);
    const bool is_ignored = all.before[i].sa_handler == SIG_IGN;
    if (kHandled[i].number == SIGHUP && is_ignored) continue;
    sigaction(kHandled[i].number, &action, nullptr);
  }
}

std::string what_comes_first(const RunPlace& place) {
  switch (place.doing) {
    case RunPlace::Doing::stepping: return fmt::format("finishing step {}", place.step + 1);
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
  Shared& all = shared();
  const std::lock_guard lock(all.mutex);
  if (all.objects++ == 0) {
    stop_signal = 0;
    stops = 0;
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
  if (--all.objects > 0) return;
  for (std::size_t i = 0; i < kHandled.size(); ++i) {
    sigaction(kHandled[i].number, &all.before[i], nullptr);
  }
  all.watcher.reset();
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
      return fmt::format("SIGUSR1: finishing step {}, then saving and going on", place.step + 1);
    case RunPlace::Doing::recording:
      return "SIGUSR1: finishing the step under way, then saving and going on";
    case RunPlace::Doing::ending:
    case RunPlace::Doing::done: return "SIGUSR1: the run is ending";
    default: return fmt::format("SIGUSR1: saving step {} and going on", place.step);
  }
}

}  // namespace heddle
