#pragma once

#include <filesystem>

#include "checkpoint/manifest.h"
#include "model/spec.h"

namespace heddle {

/// Error(data) that names manifest.json in `checkpoint` and the key unless `trainer` holds what a
/// run of this model writes there (docs/formats/checkpoint.md). What is missing is no fault: older
/// versions wrote less. Checksums say that a file is as it was written, not who wrote it.
void check_trainer(const Manifest& manifest, const ModelSpec& spec,
                   const std::filesystem::path& checkpoint);

}  // namespace heddle
