#pragma once

#include <string>
#include <vector>

#include "config/run_config.h"

namespace heddle::config {

/// Something that is wrong with a combination of keys.
struct Conflict {
  /// The keys (or sections) it is about; the message points at the first one's place in the file.
  std::vector<std::string> keys;
  std::string message;
};

/// Checks across keys; each key by itself is already in range.
std::vector<Conflict> find_conflicts(const RunConfig& config);

/// What needs more than one rank, which this build cannot start.
std::vector<Conflict> validate_single_process(const RunConfig& config);

}  // namespace heddle::config
