#pragma once

#include <functional>
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
/// depends on the model's sizes is no part of it.
std::vector<Conflict> find_conflicts(const RunConfig& config, int ranks);

/// Further ones; those that find_conflicts has too count once.
using MoreConflicts = std::function<std::vector<Conflict>(const RunConfig&)>;

}  // namespace heddle::config
