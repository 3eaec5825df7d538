#pragma once

#include "comm/world.h"
#include "train/run_identity.h"

namespace heddle {

/// Every rank calls it with its own identity. Where ranks differ, all throw the same Error(usage)
/// that names ranks, facts and values.
void require_same_on_all_ranks(World& world, const RunIdentity& own);

}  // namespace heddle
