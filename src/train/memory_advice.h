#pragma once

#include <cstdint>

#include "base/error.h"
#include "train/run_plan.h"

namespace heddle {

/// The refusal of a run whose rank needs more than `limit_bytes` (`needed`): what the memory goes
/// into, and the keys whose change would make it fit. Changes are tried out by planning the run
/// with them, the ones first that lessen what takes most: activations, or parameters with their
/// gradients and optimizer state.
Error memory_refusal(const config::RunConfig& config, const ModelSpec& spec,
                     const ParallelPlan& parallel, Device device, const MemoryPlan& needed,
                     std::uint64_t limit_bytes);

}  // namespace heddle
