#pragma once

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <functional>
#include <map>
#include <new>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "comm/stopped_by_peer.h"
#include "comm/tcp_listener.h"
#include "recover/membership/members_file.h"
#include "recover/membership/tcp_company.h"
#include "recover/relay.h"
#include "support/temporary_folder.h"
#include "tensor/memory.h"
#include "tensor/tensor.h"

namespace heddle::recover {

/// Processes that compute together through a real Company, step by step, and write down what they
/// do. Each is a fork of the test.
class CompanyProcesses {
 public:
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;

  struct Settings {
    int ranks = 4;
    bool has_relay = false;  ///< all connections, from epoch 1 on, go through it
    Seconds timeout{6};
    Seconds step{0.02};            ///< what a step takes besides its calls
    std::size_t numbers = 20'000;  ///< in an all_reduce, of which a step has two
    /// TcpCompanyOptions::over, with the number of the process. May be absent.
    std::function<std::shared_ptr<CommBackend>(int number, std::shared_ptr<CommBackend>)> over = {};
  };

  explicit CompanyProcesses(const Settings& settings) : settings_(settings) {
    void* const memory =
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shared_ = new (memory) Shared;
    if (settings.has_relay) start_relay();
    meeting_ = listen_on(0, settings.ranks, TcpReach::this_machine);
    for (int rank = 0; rank < settings.ranks; ++rank) start(rank, false);
    close(meeting_.socket);
  }
  ~CompanyProcesses() {
    for (int process = 0; process < static_cast<int>(children_.size()); ++process) {
      send_signal(process, SIGKILL);
      status(process);
    }
    if (relay_ > 0) {
      kill(relay_, SIGKILL);
      waitpid(relay_, nullptr, 0);
    }
    for (const int socket : relay_sockets_) close(socket);
    munmap(shared_, sizeof(Shared));
  }
  CompanyProcesses(const CompanyProcesses&) = delete;
  CompanyProcesses& operator=(const CompanyProcesses&) = delete;

  /// Another process, which finds the others by the members file; its number.
  int join() {
    start(static_cast<int>(children_.size()), true);
    return static_cast<int>(children_.size()) - 1;
  }
  /// Nothing happens where it has ended and was waited for.
  void send_signal(int process, int signal) const {
    const pid_t child = children_[static_cast<std::size_t>(process)];
    if (child > 0) kill(child, signal);
  }
  /// All who go on come to their end together.
  void stop() { shared_->stops = true; }
  /// The process does nothing any more, but its threads do.
  void hang(int process, bool hangs = true) { seen(process).hangs = hangs; }
  void tell_to_leave(int process) { seen(process).leaves = true; }

  void hold(int from, int to, bool is_held = true) {
    shared_->rules.holds[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)] = is_held;
  }
  void hold_both(int a, int b, bool is_held = true) {
    hold(a, b, is_held);
    hold(b, a, is_held);
  }
  void split(const std::set<int>& half, bool is_split = true) {
    for (int a = 0; a < static_cast<int>(children_.size()); ++a) {
      for (int b = 0; b < static_cast<int>(children_.size()); ++b) {
        if (half.count(a) != half.count(b)) hold(a, b, is_split);
      }
    }
  }
  void flip(int from, int to) {
    shared_->rules.flips[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)] = true;
  }

  std::int64_t epoch(int process) const { return seen(process).epoch; }
  std::int64_t step(int process) const { return seen(process).step; }
  int size(int process) const { return seen(process).size; }
  /// When the process last noticed that an epoch had ended, and finished the first step of one.
  Clock::time_point noticed(int process) const { return time_of(seen(process).noticed); }
  Clock::time_point first_step_of_epoch(int process) const {
    return time_of(seen(process).stepped);
  }

  /// Whether it comes about in time.
  static bool wait(const std::function<bool()>& is_so, Seconds longest = Seconds(20)) {
    const auto until = Clock::now() + longest;
    while (!is_so()) {
      if (Clock::now() > until) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return true;
  }
  /// All of them compute in one epoch, this one or a later one, with so many ranks.
  bool go_on(const std::vector<int>& processes, std::int64_t from, int size,
             Seconds longest = Seconds(20)) const {
    std::map<int, std::int64_t> steps;
    return wait(
        [&] {
          for (const int process : processes) {
            const Seen& one = seen(process);
            if (one.epoch < from || one.size != size || one.epoch != seen(processes[0]).epoch) {
              steps.clear();
              return false;
            }
            steps.insert({process, one.step});
          }
          return std::ranges::all_of(
              processes, [&](int process) { return seen(process).step >= steps[process] + 2; });
        },
        longest);
  }

  /// 128 + N where signal N ended it. Waits for it; nothing where it runs on.
  std::optional<int> status(int process, Seconds longest = Seconds(20)) {
    wait([&] { return look_at(process); }, longest);
    return statuses_[process];
  }

  /// What the process wrote down; a line each: "epoch N of K from S: cause", "did S", "end: why".
  std::vector<std::string> lines(int process) const {
    std::ifstream file(log_of(process));
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }
  std::string text(int process) const {
    std::string text;
    for (const auto& line : lines(process)) text += line + "\n";
    return text;
  }
  /// The cause of the process's last change.
  std::string cause(int process) const {
    std::string cause;
    for (const std::string& line : lines(process)) {
      if (line.starts_with("epoch ")) cause = line.substr(line.find(": ") + 2);
    }
    return cause;
  }

  /// What is wrong with all that was written down: an epoch with two rosters or beginnings, steps
  /// done twice in an epoch or left out, or by a member behind where the next epoch began.
  std::vector<std::string> faults() const {
    struct Begin {
      std::string roster;
      std::int64_t step = 0;
    };
    std::map<std::int64_t, Begin> epochs;
    std::vector<std::string> faults;
    for (int process = 0; process < static_cast<int>(children_.size()); ++process) {
      std::int64_t step = -1;
      for (const std::string& line : lines(process)) {
        std::istringstream words(line);
        std::string word, roster;
        words >> word;
        if (word == "epoch") {
          std::int64_t epoch = 0, begin = 0;
          words >> epoch >> roster >> begin;
          const auto [known, is_new] = epochs.insert({epoch, {roster, begin}});
          if (known->second.roster != roster || known->second.step != begin) {
            faults.push_back(fmt::format("epoch {} has two histories", epoch));
          }
          if (step > begin) {
            faults.push_back(fmt::format("process {} did step {}, epoch {} begins behind {}",
                                         process, step, epoch, begin));
          }
          step = begin;
        } else if (word == "did") {
          std::int64_t next = 0;
          words >> next;
          if (next != step + 1) {
            faults.push_back(fmt::format("process {} did {} behind {}", process, next, step));
          }
          step = next;
        } else if (word == "wrong") {
          faults.push_back(fmt::format("process {}: {}", process, line));
        }
      }
    }
    return faults;
  }

 private:
  struct Seen {
    std::atomic<std::int64_t> epoch = -1, step = 0, noticed = 0, stepped = 0;
    std::atomic<int> size = 0;
    std::atomic<bool> hangs = false, leaves = false;
  };
  struct Shared {
    std::atomic<bool> stops = false;
    RelayRules rules;
    std::array<Seen, RelayRules::kMost> seen;
  };

  /// Whether it has ended.
  bool look_at(int process) {
    pid_t& child = children_[static_cast<std::size_t>(process)];
    int state = 0;
    if (child > 0 && waitpid(child, &state, WNOHANG) == child) {
      statuses_[process] = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
      child = 0;  // somebody else may have its number from now on
    }
    return child == 0;
  }

  Seen& seen(int process) const { return shared_->seen[static_cast<std::size_t>(process)]; }
  static Clock::time_point time_of(std::int64_t count) {
    return Clock::time_point(Clock::duration(count));
  }
  std::filesystem::path log_of(int process) const {
    return folder_.path() / std::to_string(process);
  }
  std::filesystem::path members_file() const { return folder_.path() / "members"; }

  void start_relay() {
    for (int i = 0; i < RelayRules::kMost; ++i) {
      const TcpListener own = listen_on(0, 64, TcpReach::this_machine);
      fcntl(own.socket, F_SETFL, fcntl(own.socket, F_GETFL) | O_NONBLOCK);
      relay_sockets_.push_back(own.socket);
      relay_ports_.push_back(own.port);
    }
    relay_ = fork();
    if (relay_ < 0) fail(ErrorCode::resources, "a process could not be started");
    if (relay_ > 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    Relay(relay_sockets_, shared_->rules).run();
  }

  void start(int number, bool is_newcomer) {
    const pid_t child = fork();
    if (child < 0) fail(ErrorCode::resources, "a process could not be started");
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      be_process(number, is_newcomer);
    }
    children_.push_back(child);
  }

  TcpCompanyOptions options(int number, bool is_newcomer) const {
    const auto index = static_cast<std::size_t>(number);
    TcpCompanyOptions options{.place = {.rank = number,
                                        .size = settings_.ranks,
                                        .port = meeting_.port,
                                        .listening = number == 0 ? meeting_.socket : -1,
                                        .token = Token("the token of this test", "a test")},
                              .timeout = std::chrono::duration_cast<Duration>(settings_.timeout),
                              .members_file = members_file()};
    if (is_newcomer) options.contacts = read_members(members_file());
    if (settings_.over) {
      options.over = [this, number](std::shared_ptr<CommBackend> host) {
        return settings_.over(number, std::move(host));
      };
    }
    options.called_at = [this, index](std::uint16_t own) {
      shared_->rules.processes[index] = getpid();
      shared_->rules.ports[index] = own;
      return relay_ > 0 ? relay_ports_[index] : own;
    };
    return options;
  }

  [[noreturn]] void be_process(int number, bool is_newcomer) {
    const int log = open(log_of(number).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    const auto note = [log](const std::string& line) {
      const std::string text = line + "\n";
      static_cast<void>(!::write(log, text.data(), text.size()));
    };
    int status = 0;
    try {
      const auto company = make_tcp_company(options(number, is_newcomer));
      compute(*company, seen(number), note);
      note("end: all have ended");
    } catch (const Left& left) {
      note(fmt::format("end: {}", left.message()));
      status = static_cast<int>(left.code());
    } catch (const Error& error) {
      note(fmt::format("end: {}", error.message()));
      status = static_cast<int>(error.code());
    } catch (const std::exception& error) {
      note(fmt::format("wrong: {}", error.what()));
      status = 99;
    }
    _exit(status);
  }

  void compute(Company& company, Seen& seen,
               const std::function<void(const std::string&)>& note) const {
    while (true) {
      const Epoch epoch = company.next();
      std::string roster;
      for (const MemberId member : epoch.members) roster += fmt::format("{:x},", member);
      note(
          fmt::format("epoch {} {} {} of {} ({:.2f} s to notice, {:.2f} to agree, {:.2f} to "
                      "connect): {}",
                      epoch.number, roster, epoch.step, epoch.members.size(), epoch.detect,
                      epoch.agree, epoch.connect, epoch.cause));
      seen.step = epoch.step;
      seen.size = static_cast<int>(epoch.members.size());
      seen.epoch = static_cast<std::int64_t>(epoch.number);
      try {
        if (take_steps(company, epoch, seen, note)) return company.end();
      } catch (const StoppedByPeer&) {
      }
      seen.noticed = Clock::now().time_since_epoch().count();
    }
  }

  /// Until all stop (true) or the epoch ends.
  bool take_steps(Company& company, const Epoch& epoch, Seen& seen,
                  const std::function<void(const std::string&)>& note) const {
    Communicator& all = epoch.world->all();
    Memory memory;
    Stream stream(1);
    const Tensor whole = memory.alloc(Shape{static_cast<std::int64_t>(settings_.numbers)},
                                      DType::f32, MemoryTag::workspace);
    for (std::int64_t step = epoch.step + 1;; ++step) {
      company.stepping(true);
      while (seen.hangs) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      std::this_thread::sleep_for(settings_.step);
      float* const numbers = whole.data<float>();
      for (std::size_t i = 0; i < settings_.numbers; ++i) {
        numbers[i] = static_cast<float>(step % 1000 + all.rank());
      }
      all.all_reduce(whole, ReduceOp::sum, stream).wait(stream);
      const int n = all.size();
      const auto sum = static_cast<float>((step % 1000) * n + n * (n - 1) / 2);
      for (std::size_t i = 0; i < settings_.numbers; ++i) {
        if (numbers[i] != sum) {
          note(fmt::format("wrong {} in place of {} at {} of step {}", numbers[i], sum, i, step));
          break;
        }
      }
      const bool is_relayed = settings_.has_relay && epoch.number == 0;
      if (seen.leaves) company.leave();
      const double asked = shared_->stops ? 2 : company.wants_change() || is_relayed ? 1 : 0;
      const double agreed = all.combine(asked, ReduceOp::max);
      if (!company.finished(step)) return false;
      note(fmt::format("did {}", step));
      seen.step = step;
      if (step == epoch.step + 1) seen.stepped = Clock::now().time_since_epoch().count();
      company.stepping(false);
      if (agreed == 2) return true;
      if (agreed == 1) company.change();
    }
  }

  const Settings settings_;
  const TemporaryFolder folder_;
  Shared* shared_ = nullptr;
  TcpListener meeting_;
  pid_t relay_ = 0;
  std::vector<int> relay_sockets_;
  std::vector<std::uint16_t> relay_ports_;
  std::vector<pid_t> children_;
  std::map<int, std::optional<int>> statuses_;
};

}  // namespace heddle::recover
