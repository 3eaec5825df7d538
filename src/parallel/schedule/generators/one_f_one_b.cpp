#include <algorithm>

#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/generators/placement.h"

namespace heddle::generators {

Schedule one_f_one_b(const PipeShape& shape) {
  Schedule schedule = looped(shape);
  for (int rank = 0; rank < shape.ranks; ++rank) {
    auto& actions = schedule.by_rank[static_cast<std::size_t>(rank)];
    const int warm_up = std::min(shape.microbatches, shape.ranks - rank - 1);
    for (int mb = 0; mb < warm_up; ++mb) actions.push_back({Act::f, rank, mb});
    for (int mb = 0; mb < shape.microbatches; ++mb) {
      if (warm_up + mb < shape.microbatches) actions.push_back({Act::f, rank, warm_up + mb});
      actions.push_back({Act::bw, rank, mb});
    }
  }
  return schedule;
}

}  // namespace heddle::generators
