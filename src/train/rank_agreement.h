#pragma once

#include "comm/world.h"
#include "train/run_identity.h"

namespace heddle {

/// Every rank calls it with its own identity. Where ranks differ, all throw the same Error(usage)
/// that names ranks, facts and values.
void require_same_on_all_ranks(World& world, const RunIdentity& own);

/// The same where a run goes on, as it is on rank 0: on ranks that differ from that, which have
/// come to it, Error(usage), so that they end; on the others Error(peer), since they go on without
/// them.
void require_same_as_run(World& world, const RunIdentity& own);

}  // namespace heddle
