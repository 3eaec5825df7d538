#pragma once

#include <filesystem>
#include <memory>

#include "mesh/mesh_shape.h"
#include "train/keepers.h"
#include "train/run_lock.h"

namespace heddle {

/// A run folder that ranks have taken, and who of them keep it.
struct TakenFolder {
  Keepers keepers;
  std::unique_ptr<RunLock> lock;  ///< on the first keeper
};

/// Takes the run folder before anything is written there; all ranks of `world`, which are arranged
/// as `mesh`, call it. Where they see the one of rank 0, they keep it together. Where no rank of
/// another site than the first does, each site has a folder of its own. Error(usage) on ranks that
/// do not see what others of their site have, and where sites can not be told apart in this way.
///
/// `all_write`: every rank writes there. Otherwise it is rank 0's, whatever others see.
TakenFolder take_folder(World& world, const std::filesystem::path& folder, const MeshShape& mesh,
                        bool all_write);

}  // namespace heddle
