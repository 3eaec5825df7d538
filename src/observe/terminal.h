#pragma once

namespace heddle::observe {

/// What standard error can show. The caller decides about colours (NO_COLOR is read in cli/).
struct Terminal {
  bool is_terminal = false;
  bool colors = false;  ///< never true when is_terminal is false
  int columns = 80;
  bool is_silent = false;  ///< nothing is shown at all: ranks other than the first
};

Terminal stderr_terminal(bool no_color);

}  // namespace heddle::observe
