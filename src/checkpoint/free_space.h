#pragma once

#include <cstdint>
#include <filesystem>

#include "base/file_system.h"

namespace heddle {

/// Throws Error(resources), saying how much is needed and free, unless `bytes` of tensors and texts
/// (and what headers and the file system add to them) fit into `folder`, which exists.
void require_free_space(FileSystem& files, const std::filesystem::path& folder,
                        std::uint64_t bytes);

}  // namespace heddle
