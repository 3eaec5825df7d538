#include "base/log.h"

#include <cstdio>
#include <mutex>

#include "base/clock.h"
#include "base/error.h"

namespace heddle {
namespace {

struct LogState {
  std::mutex mutex;
  LogLevel level = LogLevel::info;
  std::FILE* file = nullptr;
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

// Blanks rather than an escape sequence: works on every terminal and with colours off.
void erase_status(const LogState& s) {
  if (s.status_columns > 0) fmt::print(stderr, "\r{:{}}\r", "", s.status_columns);
}

}  // namespace

void log_line(LogLevel level, const std::string& text) {
  LogState& s = state();
  const std::lock_guard lock(s.mutex);
  if (level < s.level) return;
  erase_status(s);
  fmt::print(stderr, "{}{}\n", prefix(level), text);
  if (s.status_columns > 0) fmt::print(stderr, "{}", s.status);
  if (s.file != nullptr) {
    fmt::print(s.file, "{} {}{}\n", utc_time(), prefix(level), text);
    std::fflush(s.file);
  }
}

void set_status_line(const std::string& text, std::size_t columns) {
  LogState& s = state();
  const std::lock_guard lock(s.mutex);
  if (columns < s.status_columns) erase_status(s);
  // One write per redraw, so that the line does not flicker.
  if (columns > 0) fmt::print(stderr, "\r{}", text);
  std::fflush(stderr);
  s.status = text;
  s.status_columns = columns;
}

void set_log_level(LogLevel level) {
  const std::lock_guard lock(state().mutex);
  state().level = level;
}

void attach_log_file(const std::filesystem::path& path) {
  std::FILE* file = std::fopen(path.c_str(), "a");
  if (file == nullptr) fail(ErrorCode::resources, "cannot open log file {}", path.string());
  detach_log_file();
  const std::lock_guard lock(state().mutex);
  state().file = file;
}

void detach_log_file() {
  const std::lock_guard lock(state().mutex);
  if (state().file != nullptr) std::fclose(state().file);
  state().file = nullptr;
}

}  // namespace heddle
