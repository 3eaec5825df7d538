#pragma once

#include "config/run_config.h"
#include "model/parallel_plan.h"

namespace heddle {

/// The section `parallel`, and what the optimizer wants of the ranks, as the planner of meshes
/// takes it. Throws Error(usage) for what this version does not do.
ParallelRequest parallel_request(const config::RunConfig& config);

}  // namespace heddle
