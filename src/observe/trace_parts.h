#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>

#include "observe/trace.h"

namespace heddle::observe {

/// The timeline of a run as files of a folder: run-NNNNNN.json, named by the first step in it. Each
/// is whole, opens on its own and stays when the process is killed. A resumed run's time goes on
/// where the parts before end.
class TraceParts {
 public:
  /// Steps after `last_step` are cut from what is there: they will be made again. Parts that cannot
  /// be read are removed and named in the log. `limit_bytes`: the oldest parts beyond it are
  /// removed, which is said once; 0 keeps all.
  TraceParts(std::filesystem::path folder, std::int64_t last_step, std::uint64_t limit_bytes);

  /// Spans of further steps, with times from when this object was made. Error(resources) when they
  /// cannot be written.
  void add(const Trace& steps);

 private:
  struct Part {
    std::filesystem::path path;
    std::uint64_t bytes = 0;
  };
  void drop_oldest();

  const std::filesystem::path folder_;
  const std::uint64_t limit_bytes_;
  std::deque<Part> parts_;  // oldest first
  std::uint64_t bytes_ = 0;
  double begin_seconds_ = 0;  // of this object on the timeline
  bool has_dropped_ = false;
};

/// All parts of the folder as one; empty where there are none. Error(data) as read_trace.
Trace read_trace_parts(const std::filesystem::path& folder);

}  // namespace heddle::observe
