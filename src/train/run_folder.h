#pragma once

#include <filesystem>

#include "config/run_config.h"

namespace heddle {

/// Refuses a folder in which a run would overwrite what heddle did not write: Error(usage) that
/// names the files. A folder is a run's when the run.toml in it is a resolved one, or where there
/// is none, when it has checkpoints of ours.
void check_run_folder(const std::filesystem::path& folder);

/// Removes what an earlier run left: checkpoints, metrics, TensorBoard events, report and trace.
/// What heddle did not write stays and is named in a line; a foreign folder with the name of a
/// checkpoint, which a run could not leave alone, is an Error(usage), before anything is removed.
void forget_earlier_run(const std::filesystem::path& folder);

/// Writes the resolved run file: every key, below a line that marks it as ours.
void write_resolved_run_file(const std::filesystem::path& folder, const config::RunConfig& config);

}  // namespace heddle
