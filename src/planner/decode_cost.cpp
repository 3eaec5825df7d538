#include "planner/decode_cost.h"

#include "planner/context_cost.h"

namespace heddle::planner {

ContextTimes decode_times(const Machine& machine, const DecodeShape& shape, DType dtype) {
  ContextTimes times = message_times(machine, shape.ranks, 1);
  times.sizes.value = static_cast<int>(size_of(dtype));
  times.pair = 2.0 * shape.key_heads * shape.head_dim * times.sizes.value /
               machine.device.memory_bytes_per_s;
  times.kernel = machine.device.kernel_s;
  return times;
}

}  // namespace heddle::planner
