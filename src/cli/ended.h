#pragma once

namespace heddle::cli {

/// Thrown where the program is to end with this status and everything was said: other processes,
/// which this one started, did the work; or another rank has told why this one stops.
struct Ended {
  int status = 0;
};

}  // namespace heddle::cli
