#pragma once

#include <fmt/core.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <utility>

namespace heddle {

enum class LogLevel { debug, info, warn, error };

/// One line for people: to standard error, and to the run's log.txt once attached. Thread-safe.
/// Where it cannot be written it is lost; it never ends the work.
/// The one process-wide state we keep: a log line must be possible anywhere, also while failing.
void log_line(LogLevel level, const std::string& text);
void set_log_level(LogLevel level);
/// Lines go to this file too, until the process ends or another is attached.
void attach_log_file(const std::filesystem::path& path);

/// The line at the bottom of a terminal that is rewritten in place (progress); log lines appear
/// above it and it is drawn again below them. Empty removes it. `columns` is what it takes on
/// screen, which differs from its size when it carries colours or non-ASCII text. Only for a
/// standard error that is a terminal.
void set_status_line(const std::string& text, std::size_t columns);

template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::info, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_warn(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::warn, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::debug, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace heddle
