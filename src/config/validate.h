#pragma once

#include <string>
#include <vector>

#include "config/run_config.h"

namespace heddle::config {

/// Something that is wrong with a combination of keys.
struct Conflict {
  /// The keys (or sections) it is about; the message points at the first one that was given.
  std::vector<std::string> keys;
  std::string message;
};

/// Checks across keys, for a run of so many ranks; each key by itself is already in range. What
/// depends on the model's sizes is checked when its plan is made (model/parallel_plan.h).
std::vector<Conflict> find_conflicts(const RunConfig& config, int ranks);

}  // namespace heddle::config
