#include "observe/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

namespace heddle::observe {

Terminal stderr_terminal(bool no_color) {
  Terminal terminal;
  terminal.is_terminal = ::isatty(STDERR_FILENO) == 1;
  terminal.colors = terminal.is_terminal && !no_color;
  winsize size{};
  if (terminal.is_terminal && ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    terminal.columns = size.ws_col;
  }
  return terminal;
}

}  // namespace heddle::observe
