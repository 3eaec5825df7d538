#pragma once

#include <fmt/core.h>

#include <exception>
#include <string>
#include <utility>

namespace heddle {

/// Category of a failure; the value is the exit status of the program (docs/guide.md, "Exit
/// status").
enum class ErrorCode : int {
  usage = 2,      ///< command line or configuration
  resources = 3,  ///< memory, disk, permissions, a missing device
  peer = 4,       ///< another rank or the network
  data = 5,       ///< a file's content: data, weights, checkpoints
  stopped = 6,    ///< ended by a signal, checkpoint saved
  internal = 70,  ///< our bug
};

/// What ends a run. The message names the thing and what is wrong with it; the hint says what to
/// change.
class Error : public std::exception {
 public:
  Error(ErrorCode code, std::string message, std::string hint = {});

  ErrorCode code() const { return code_; }
  const std::string& message() const { return message_; }
  const std::string& hint() const { return hint_; }
  const char* what() const noexcept override { return what_.c_str(); }

  /// The same error with "context: " in front of its message.
  Error within(const std::string& context) const;

 private:
  ErrorCode code_;
  std::string message_, hint_, what_;
};

/// An error that every rank of a run throws at the same point: nobody has to be stopped or told of
/// it, and only the first process shows it. Made by the functions of comm/agree.h.
class AgreedError : public Error {
 public:
  explicit AgreedError(const Error& error) : Error(error) {}
};

/// Throws an Error whose message is formatted; use `Error` directly when there is a hint to give.
template <class... Args>
[[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace heddle
