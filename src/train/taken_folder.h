#pragma once

#include <filesystem>
#include <memory>
#include <set>
#include <string>

#include "mesh/mesh_shape.h"
#include "train/keepers.h"
#include "train/run_lock.h"

namespace heddle {

/// How a process keeps a run folder for the run, over all its epochs.
struct FolderLock {
  std::unique_ptr<RunLock> own = {};  ///< on the first keeper
  std::string text = {};              ///< of the lock that was seen last, whoever held it
  std::set<std::string> of_this_run =
      {};  ///< all that a member of the run has held, as far as known
};

/// Takes the run folder before anything is written there, and says who keep it; all ranks of
/// `world`, which are arranged as `mesh` where there are sites that may have folders of their own,
/// call it. Where they see the one of rank 0, they keep it together. Where no rank of another site
/// than the first does, each site has a folder of its own. Error(usage) on ranks that do not see
/// what others of their site have, and where sites can not be told apart in this way.
///
/// Who has it already keeps it; a first keeper takes it over from another member of this run.
/// `all_write`: every rank writes there. Otherwise it is rank 0's, whatever others see.
Keepers take_folder(World& world, const std::filesystem::path& folder, const MeshShape& mesh,
                    bool all_write, FolderLock& lock);

}  // namespace heddle
