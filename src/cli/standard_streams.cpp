#include "cli/standard_streams.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <iostream>

#include "base/error.h"
#include "base/log.h"

namespace heddle::cli {
namespace {

bool reader_has_gone() {
  pollfd output{STDOUT_FILENO, POLLOUT, 0};
  return ::poll(&output, 1, 0) > 0 && (output.revents & POLLERR) != 0;
}

}  // namespace

void prepare_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // The lowest free number is the stream's. For reading only: who writes there is told.
    if (::fcntl(stream, F_GETFD) < 0) ::open("/dev/null", O_RDONLY);
  }
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  std::cout.exceptions(std::ios::badbit);  // a verb that prints for long stops at once
}

bool results_have_failed() { return std::ferror(stdout) != 0; }

int status_with_results(int status) {
  const int flush_error = std::fflush(stdout) == 0 ? 0 : errno;
  if (!results_have_failed()) return status;
  if (reader_has_gone()) {
    std::signal(SIGPIPE, SIG_DFL);
    std::raise(SIGPIPE);
  }
  // What failed earlier has left no reason behind; some reasons show again without a byte.
  const int error = flush_error != 0 ? flush_error : ::write(STDOUT_FILENO, "", 0) < 0 ? errno : 0;
  log_line(LogLevel::error, fmt::format("the result could not be written to standard output{}{}",
                                        error == 0 ? "" : ": ",
                                        error == 0       ? ""
                                        : error == EBADF ? "it is closed"
                                                         : std::strerror(error)));
  return status == 0 ? static_cast<int>(ErrorCode::resources) : status;
}

}  // namespace heddle::cli
