#pragma once

#include <filesystem>
#include <vector>

#include "base/file_system.h"
#include "checkpoint/hf_folder.h"
#include "checkpoint/layout.h"
#include "checkpoint/manifest.h"

namespace heddle {

// A checkpoint is written in a folder beside its name, by any number of writers: one stages it,
// each writes boxes (BoxWriter) and leaves a record of them, and when all have, one commits it. At
// every moment, also when any writer is killed or the power fails, find_latest(root) gives a whole
// checkpoint if there was one before; a checkpoint of the same step stays until the new one has its
// name. Failures throw Error(resources) and leave what was there. One checkpoint at a time per
// root: leftovers of crashed writers are removed first.

/// Makes the folder `root/step-NNNNNN.tmp-PID` with empty files, and returns it. A disk that has no
/// room for all is found here. `other_bytes`: of small files.
std::filesystem::path stage_checkpoint(FileSystem& files, const std::filesystem::path& root,
                                       std::int64_t step, const CheckpointLayout& layout,
                                       std::uint64_t other_bytes);

/// Leaves what BoxWriter::finish returned, for the one that commits.
void leave_records(FileSystem& files, const std::filesystem::path& staged, int writer,
                   const std::vector<FileRecord>& records);

/// Writes small files, the manifest of all records and COMMIT, and gives the checkpoint its name.
/// Returns its path once it is durable. `manifest` has everything but the files. Writers are
/// numbered from 0; all of them have left their records.
std::filesystem::path commit_checkpoint(FileSystem& files, const std::filesystem::path& staged,
                                        Manifest manifest, const std::vector<TextFile>& texts,
                                        int writers);

/// Gives the space back, as far as that works. No writer is at work any more.
void abandon_checkpoint(FileSystem& files, const std::filesystem::path& staged);

}  // namespace heddle
