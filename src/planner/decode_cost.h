#pragma once

#include "planner/machine.h"
#include "simulator/decode_plan.h"
#include "simulator/play_context.h"

namespace heddle::planner {

/// What keys and messages take when neighbouring devices decode one token: attention reads K and V
/// once, at the rate of the device's memory.
ContextTimes decode_times(const Machine& machine, const DecodeShape& shape, DType dtype);

}  // namespace heddle::planner
