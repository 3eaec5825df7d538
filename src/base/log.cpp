#include "base/log.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string_view>

#include "base/clock.h"
#include "base/error.h"

namespace heddle {
namespace {

struct LogState {
  std::mutex mutex;
  LogLevel level = LogLevel::info;
  std::FILE* file = nullptr;
  std::filesystem::path file_path;
  bool file_has_failed = false;
  std::string status;
  std::size_t status_columns = 0;
};

LogState& state() {
  static LogState instance;
  return instance;
}

const char* prefix(LogLevel level) {
  switch (level) {
    case LogLevel::debug: return "debug: ";
    case LogLevel::info: return "";
    case LogLevel::warn: return "warning: ";
    case LogLevel::error: return "error: ";
  }
  return "";
}

/// What cannot be written there (a full disk, a reader that has gone) is lost: nobody looks, and
/// the work goes on. SIGPIPE is ignored in this program (cli/standard_streams.h).
void write_to_stderr(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN) {  // a pipe that does not block, and whose reader is slow
      pollfd room{STDERR_FILENO, POLLOUT, 0};
      ::poll(&room, 1, -1);
    } else if (errno != EINTR) {
      return;
    }
  }
}

// Blanks rather than an escape sequence: works on every terminal and with colours off.
std::string erased_status(const LogState& s) {
  return s.status_columns == 0 ? "" : fmt::format("\r{:{}}\r", "", s.status_columns);
}

void write_to_console(const LogState& s, LogLevel level, std::string_view text) {
  write_to_stderr(fmt::format("{}{}{}\n{}", erased_status(s), prefix(level), text, s.status));
}

/// A line that cannot be written is said once and not the end: there may be room again later.
void write_to_file(LogState& s, LogLevel level, std::string_view text) {
  const std::string line = fmt::format("{} {}{}\n", utc_time(), prefix(level), text);
  if (std::fwrite(line.data(), 1, line.size(), s.file) == line.size() && std::fflush(s.file) == 0) {
    return;
  }
  const int why = errno;
  std::clearerr(s.file);
  if (std::exchange(s.file_has_failed, true)) return;
  write_to_console(s, LogLevel::warn,
                   fmt::format("{} lacks lines from here on, the work goes on: {}",
                               s.file_path.string(), std::strerror(why)));
}

}  // namespace

void log_line(LogLevel level, const std::string& text) {
  LogState& s = state();
  const std::lock_guard lock(s.mutex);
  if (level < s.level) return;
  write_to_console(s, level, text);
  if (s.file != nullptr) write_to_file(s, level, text);
}

void set_status_line(const std::string& text, std::size_t columns) {
  LogState& s = state();
  const std::lock_guard lock(s.mutex);
  // One write per redraw, so that the line does not flicker.
  const std::string old = columns < s.status_columns ? erased_status(s) : "";
  write_to_stderr(columns > 0 ? fmt::format("{}\r{}", old, text) : old);
  s.status = columns > 0 ? text : "";
  s.status_columns = columns;
}

void set_log_level(LogLevel level) {
  const std::lock_guard lock(state().mutex);
  state().level = level;
}

void attach_log_file(const std::filesystem::path& path) {
  std::FILE* file = std::fopen(path.c_str(), "ae");
  if (file == nullptr) fail(ErrorCode::resources, "cannot open log file {}", path.string());
  const std::lock_guard lock(state().mutex);
  if (state().file != nullptr) std::fclose(state().file);
  state().file = file;
  state().file_path = path;
  state().file_has_failed = false;
}

}  // namespace heddle
