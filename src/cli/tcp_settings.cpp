#include "cli/tcp_settings.h"

#include <sys/stat.h>

#include <charconv>
#include <cstdlib>

#include "base/error.h"
#include "base/file_system.h"
#include "base/log.h"
#include "base/strings.h"
#include "cli/local_processes.h"

namespace heddle::cli {
namespace {

constexpr const char* kSocketsVariable = "HEDDLE_SOCKETS";
constexpr int kMostSockets = 256;

Token token_in_file(const std::string& path) {
  std::string content;
  try {
    content = read_text_file(path);
  } catch (const Error& error) {
    throw Error(ErrorCode::usage,
                fmt::format("{} = {}: {}", kTokenFileVariable, path, error.message()),
                "give the file that holds the run's token");
  }
  struct stat state {};
  if (stat(path.c_str(), &state) == 0 && (state.st_mode & (S_IRGRP | S_IROTH)) != 0) {
    log_warn("others on this machine can read the token in {}; chmod 600 {}", path, path);
  }
  const std::string line = content.substr(0, content.find('\n'));
  return {std::string(trim(line)), fmt::format("{} ({})", path, kTokenFileVariable)};
}

}  // namespace

Token run_token(const Environment& environment) {
  const char* const text = environment(kTokenVariable);
  const char* const path = environment(kTokenFileVariable);
  if (text != nullptr && path != nullptr) {
    throw Error(ErrorCode::usage,
                fmt::format("{} and {} are both set", kTokenVariable, kTokenFileVariable),
                "set one of them; a file does not show in lists of processes");
  }
  if (path != nullptr) return token_in_file(path);
  if (text != nullptr) return {text, kTokenVariable};
  return {};
}

int socket_count(const Environment& environment) {
  const char* const text = environment(kSocketsVariable);
  if (text == nullptr || std::string_view(text) == "auto") return 0;
  const std::string_view word = text;
  int count = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), count);
  if (error == std::errc{} && end == word.data() + word.size() && count >= 1 &&
      count <= kMostSockets) {
    return count;
  }
  throw Error(ErrorCode::usage,
              fmt::format("{} = \"{}\" is no number of connections", kSocketsVariable, text),
              fmt::format("use a number from 1 to {}, or auto", kMostSockets));
}

TcpPlace tcp_place(const Launcher& launcher, const Environment& environment) {
  const MeetingPoint point = meeting_point(launcher, environment);
  const char* const listening = environment(kListeningVariable);
  return {.rank = launcher.rank,
          .size = launcher.size,
          .address = point.address,
          .port = point.port,
          .listening = listening != nullptr ? std::atoi(listening) : -1,
          .token = run_token(environment),
          .sockets = socket_count(environment)};
}

}  // namespace heddle::cli
