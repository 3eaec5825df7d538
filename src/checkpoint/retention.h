#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <vector>

#include "base/file_system.h"

namespace heddle {

/// Which checkpoints stay. The newest whole one always does.
struct RetentionPolicy {
  int keep_last = 2;            ///< the newest k
  std::int64_t keep_every = 0;  ///< steps divisible by n; 0 for none
  bool keep_best = true;        ///< the one with the lowest evaluation loss
  std::int64_t keep_step = -1;  ///< this one; -1 for none
  /// Where the run is: what is beyond is of steps that it has left again, and counts for nothing.
  std::int64_t run_step = std::numeric_limits<std::int64_t>::max();
};

/// The checkpoints below `root` that the policy gives up, oldest first. Only whole ones count as
/// kept; a folder that is not whole is given up only when a newer one is whole and heddle wrote it.
/// Reads manifests and file sizes.
std::vector<std::filesystem::path> expired_checkpoints(const std::filesystem::path& root,
                                                       const RetentionPolicy& policy);

/// Deletes them. Call it after commit_checkpoint, which returns once the new one is durable. A kill
/// in between leaves no half checkpoint under a checkpoint's name: each loses its name first.
void apply_retention(FileSystem& files, const std::filesystem::path& root,
                     const RetentionPolicy& policy);

}  // namespace heddle
