#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace heddle {

/// How a child process ended and what it said.
struct Outcome {
  int status = -1;  ///< exit status; -1 when a signal ended it
  int signal = 0;   ///< the signal that ended it; 0 when it exited
  std::string out, err;
  bool has_timed_out = false;
};

/// Where a standard stream of the child goes.
enum class StreamTo { test, full_disk, nowhere /* closed */, reader_that_has_gone };

struct RunOptions {
  std::filesystem::path program = {};  ///< the heddle that was built with these tests when empty
  std::map<std::string, std::string> environment = {};  ///< over the test's own; one OpenMP thread
  std::filesystem::path folder = {};                    ///< to start in; the test's own when empty
  /// Files may not grow beyond this: writing fails with EFBIG, as a full disk does with ENOSPC.
  std::optional<std::uint64_t> file_size_limit = {};

  StreamTo out = StreamTo::test, err = StreamTo::test;

  // A signal to send once `signal_at` has appeared on standard error and `signal_delay` passed
  // since; from the start when `signal_at` is empty. 0 sends none.
  int signal = 0;
  std::string signal_at = {};
  std::chrono::microseconds signal_delay{0};
  /// Further ones, each by its own text and delay, after the one before was sent.
  struct Signal {
    int signal = 0;
    std::string at = {};
    std::chrono::microseconds delay{0};
  };
  std::vector<Signal> signals_after = {};
  bool ignores_hangup = false;  ///< is started as by nohup

  std::chrono::seconds timeout{100};  ///< then it is killed
};

/// Runs the heddle that was built with these tests and waits for its end.
Outcome run_heddle(const std::vector<std::string>& arguments, const RunOptions& options = {});

}  // namespace heddle
