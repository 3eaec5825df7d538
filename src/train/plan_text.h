#pragma once

#include <string>
#include <vector>

#include "engine/memory_plan.h"
#include "model/parallel_plan.h"

namespace heddle {

/// "4.0 MiB predicted: parameters 806 KiB, gradients 802 KiB, ..."
std::string describe(const MemoryPlan& memory);

/// What keeps sequences from being longer: "what is kept for backward (65.0 GiB), then what is
/// held for a moment (24.3 GiB) and parameters and their states (20.8 GiB)".
std::string describe_length_limit(const MemoryPlan& memory);

/// "dp=2 tp=2 pp=2, ZeRO 1, sequence split over tp, schedule 1f1b of 2 stages"
std::string describe(const ParallelPlan& plan, const ModelSpec& spec);

/// What a pipeline rank has: "stage 0: embedding, layers 0-3".
std::string describe_stages(const ParallelPlan& plan, const ModelSpec& spec, int pp_rank);

/// A line for each axis and operation: "dp reduce_scatter: 6 calls, 1.2 MiB a step".
std::vector<std::string> describe_traffic(const MeshTraffic& traffic, const CommCounts& outer);

}  // namespace heddle
