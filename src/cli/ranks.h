#pragma once

#include <functional>

#include "comm/world.h"

namespace heddle::cli {

/// The ranks of this run: those that a launcher started, or `local`, what --ranks asks for.
/// Error(usage) when both say different things.
int rank_count(int local);

/// Runs `body` on every rank that this process has: as the one that a launcher made it, or as
/// `ranks` threads. Rethrows the failure of the rank that failed first.
void run_on_ranks(int ranks, const std::function<void(World&)>& body);

}  // namespace heddle::cli
