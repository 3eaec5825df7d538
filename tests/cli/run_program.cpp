#include "cli/run_program.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <stdexcept>

namespace heddle {
namespace {

using Clock = std::chrono::steady_clock;

struct Pipe {
  int read_end = -1, write_end = -1;
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    read_end = ends[0];
    write_end = ends[1];
  }
  ~Pipe() {
    if (read_end >= 0) ::close(read_end);
    if (write_end >= 0) ::close(write_end);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void close_write_end() {
    ::close(write_end);
    write_end = -1;
  }
  void close_read_end() {
    ::close(read_end);
    read_end = -1;
  }
};

std::vector<std::string> environment_of(const RunOptions& options) {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const auto equals = text.find('=');
    if (equals != std::string::npos) variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  variables["OMP_NUM_THREADS"] = "1";
  for (const auto& [name, value] : options.environment) variables[name] = value;
  std::vector<std::string> lines;
  for (const auto& [name, value] : variables) lines.push_back(name + "=" + value);
  return lines;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (auto& text : texts) list.push_back(text.data());
  list.push_back(nullptr);
  return list;
}

void redirect(StreamTo where, int pipe, int stream) {
  if (where == StreamTo::nowhere) {
    ::close(stream);
  } else if (where == StreamTo::full_disk) {
    ::dup2(::open("/dev/full", O_WRONLY | O_CLOEXEC), stream);
  } else {
    ::dup2(pipe, stream);
  }
}

/// What the child does between fork and exec: system calls only, the parent may have threads.
[[noreturn]] void become(char* const* arguments, char* const* environment,
                         const RunOptions& options, int out, int err) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // an aborted test leaves nothing running
  redirect(options.out, out, STDOUT_FILENO);
  redirect(options.err, err, STDERR_FILENO);
  if (options.ignores_hangup) ::signal(SIGHUP, SIG_IGN);
  if (!options.folder.empty() && ::chdir(options.folder.c_str()) != 0) ::_exit(126);
  if (options.file_size_limit) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{*options.file_size_limit, *options.file_size_limit};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ::execve(arguments[0], arguments, environment);
  ::_exit(127);
}

/// False at the end of the stream.
bool take_available(int descriptor, std::string& text) {
  std::array<char, 4096> block;
  const ssize_t size = ::read(descriptor, block.data(), block.size());
  if (size > 0) text.append(block.data(), static_cast<std::size_t>(size));
  return size > 0 || (size < 0 && errno == EINTR);
}

/// Reads both streams to their ends, sending the signal and keeping the time on the way.
class Watch {
 public:
  Watch(pid_t child, const RunOptions& options, Outcome& outcome)
      : child_(child), options_(options), outcome_(outcome), to_send_(options.signals_after) {
    if (options.signal != 0) {
      to_send_.insert(to_send_.begin(), {options.signal, options.signal_at, options.signal_delay});
    }
  }

  void follow(int out, int err) {
    std::array<pollfd, 2> streams = {{{out, POLLIN, 0}, {err, POLLIN, 0}}};
    while (streams[0].fd >= 0 || streams[1].fd >= 0) {
      act();
      const auto left = std::chrono::ceil<std::chrono::nanoseconds>(next_ - Clock::now());
      const timespec wait{left.count() > 0 ? left.count() / 1'000'000'000 : 0,
                          left.count() > 0 ? left.count() % 1'000'000'000 : 0};
      if (::ppoll(streams.data(), streams.size(), &wait, nullptr) <= 0) continue;
      if (streams[0].revents != 0 && !take_available(out, outcome_.out)) streams[0].fd = -1;
      if (streams[1].revents != 0 && !take_available(err, outcome_.err)) streams[1].fd = -1;
    }
  }

 private:
  /// Does what is due and sets when to look again.
  void act() {
    const auto now = Clock::now();
    next_ = end_;
    if (now >= end_ && !outcome_.has_timed_out) {
      outcome_.has_timed_out = true;
      ::kill(child_, SIGKILL);
    }
    if (sent_ == to_send_.size()) return;
    const auto& [signal, at, delay] = to_send_[sent_];
    if (!due_ && outcome_.err.find(at, seen_) != std::string::npos) due_ = now + delay;
    if (!due_) return;
    if (now >= *due_) {
      seen_ = outcome_.err.size();
      ::kill(child_, signal);
      ++sent_;
      due_.reset();
    } else {
      next_ = std::min(next_, *due_);
    }
  }

  const pid_t child_;
  const RunOptions& options_;
  Outcome& outcome_;
  const Clock::time_point end_ = Clock::now() + options_.timeout;
  Clock::time_point next_ = end_;
  std::optional<Clock::time_point> due_;
  std::vector<RunOptions::Signal> to_send_;
  std::size_t sent_ = 0, seen_ = 0;  // of what was said when the last one was sent
};

}  // namespace

Outcome run_heddle(const std::vector<std::string>& arguments, const RunOptions& options) {
  std::vector<std::string> words = {options.program.empty() ? HEDDLE_PROGRAM
                                                            : options.program.string()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> variables = environment_of(options);
  const auto argv = pointers(words), envp = pointers(variables);
  Pipe out, err;
  if (options.out == StreamTo::reader_that_has_gone) out.close_read_end();
  if (options.err == StreamTo::reader_that_has_gone) err.close_read_end();
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("cannot fork");
  if (child == 0) become(argv.data(), envp.data(), options, out.write_end, err.write_end);
  out.close_write_end();
  err.close_write_end();
  Outcome outcome;
  Watch(child, options, outcome).follow(out.read_end, err.read_end);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status)) outcome.status = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
  return outcome;
}

}  // namespace heddle
