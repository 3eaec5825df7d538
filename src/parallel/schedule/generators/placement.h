#pragma once

#include "parallel/schedule/make_schedule.h"

namespace heddle::generators {

/// No actions yet; `chunks` stages per rank, stage s on rank s % ranks.
Schedule looped(const PipeShape& shape);

/// No actions yet; stages g and 2 ranks - 1 - g on rank g, so that the first and the last stage
/// meet on rank 0 and the two in the middle on the last rank.
Schedule v_shaped(const PipeShape& shape);

/// Without the micro-batches from `microbatches` on. What is left is valid when the whole was:
/// micro-batches do not depend on each other. So an order that is made for many micro-batches
/// serves fewer.
Schedule keep_first(Schedule schedule, int microbatches);

}  // namespace heddle::generators
