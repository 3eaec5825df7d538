#pragma once

#include <exception>

#include "comm/world.h"

namespace heddle::cli {

/// What a failure before the ranks met becomes once they have: all ranks call this at the same
/// time, those that got here well with nothing. Of ranks that fail of the same, the first says it,
/// with its number unless all do. The status that all ranks then end with; 0 when none has failed.
int tell_shared_failure(World& world, const std::exception_ptr& failure);

}  // namespace heddle::cli
