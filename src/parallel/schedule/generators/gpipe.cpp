#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/generators/placement.h"

namespace heddle::generators {

Schedule gpipe(const PipeShape& shape) {
  Schedule schedule = looped(shape);
  for (int rank = 0; rank < shape.ranks; ++rank) {
    auto& actions = schedule.by_rank[static_cast<std::size_t>(rank)];
    for (const Act act : {Act::f, Act::bw}) {
      for (int mb = 0; mb < shape.microbatches; ++mb) actions.push_back({act, rank, mb});
    }
  }
  return schedule;
}

}  // namespace heddle::generators
