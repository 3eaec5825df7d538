#pragma once

namespace heddle::cli {

/// Thrown where everything has been said and the process is to end with this exit status.
struct EndWithStatus {
  int status = 0;
};

}  // namespace heddle::cli
