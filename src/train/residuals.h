#pragma once

#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "checkpoint/own_boxes.h"
#include "checkpoint/state_source.h"
#include "engine/model.h"

namespace heddle {

/// What encoding lost of gradients (ParamStore::Residuals) as a checkpoint keeps it: "residual.R"
/// of rank R of those that sum them, "residual_of_sum" of what they sum to.
/// Where sites train apart, a prefix says of which (own_prefix).
std::vector<StateKind> residual_states(const ParamStore& store, const std::string& prefix = "");

/// By which codec and on how many ranks they were made, for the checkpoint; null where the plan
/// keeps none.
Json describe_residuals(const ParallelPlan& plan);

/// Reads them back. On as many ranks as before each has its own to the bit; on N others, rank i
/// takes the sum of those of all ranks q with q mod N = i, so that their sum stays. Those of
/// another codec are left behind. `then` is what describe_residuals() said. Returns a line that
/// says what was done; "" where there is nothing to say.
std::string restore_residuals(const StateSource& source, const Json& then, Model& model,
                              Stream& stream, const std::string& prefix = "");

}  // namespace heddle
