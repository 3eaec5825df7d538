#pragma once

namespace heddle {

/// While it lives, SIGINT and SIGTERM ask for a stop instead of ending the process; a second signal
/// ends it at once. All of a process see the same signals.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// The name of the signal that came, or nullptr.
  const char* received() const;
};

}  // namespace heddle
