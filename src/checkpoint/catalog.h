#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"

namespace heddle {

/// The names below a `checkpoints` folder: `step-000400` is a checkpoint;
/// `step-000400.old-PID` is one that is being replaced by a new one of the same step and counts
/// until that is there; `step-000400.tmp-PID` is never one: it is being written, or being deleted.
std::string checkpoint_name(std::int64_t step);

struct CheckpointFolder {
  std::filesystem::path path;
  std::int64_t step = 0;
  bool is_replaced = false;  ///< an .old- folder
};

/// Newest first, whole or not; empty when `root` does not exist.
std::vector<CheckpointFolder> list_checkpoints(const std::filesystem::path& root);
/// What a crash left behind: the .tmp- folders.
std::vector<std::filesystem::path> list_leftovers(const std::filesystem::path& root);

/// Whether heddle wrote this folder, whole or damaged: it has a COMMIT or a manifest of ours.
bool is_own_checkpoint(const std::filesystem::path& folder);

/// The newest whole checkpoint, of those up to step `last`. A newer one that is not whole is named
/// in a warning, with what is wrong. nullopt when there is no checkpoint at all; Error(data) when
/// there are some and none is whole, so that nobody starts anew over a damaged run without knowing.
std::optional<std::filesystem::path> find_latest(
    const std::filesystem::path& root, Verify verify = Verify::sizes,
    std::int64_t last = std::numeric_limits<std::int64_t>::max());

}  // namespace heddle
