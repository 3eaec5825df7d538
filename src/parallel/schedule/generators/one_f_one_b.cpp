#include <algorithm>

#include "parallel/schedule/schedule.h"

namespace heddle {

Schedule one_f_one_b(const PipeShape& shape) {
  Schedule schedule{.stages = shape.ranks, .microbatches = shape.microbatches, .by_rank = {}};
  for (int rank = 0; rank < shape.ranks; ++rank) {
    std::vector<Action> actions;
    const int warm_up = std::min(shape.microbatches, shape.ranks - rank - 1);
    for (int mb = 0; mb < warm_up; ++mb) actions.push_back({Act::f, rank, mb});
    for (int mb = 0; mb < shape.microbatches; ++mb) {
      if (warm_up + mb < shape.microbatches) actions.push_back({Act::f, rank, warm_up + mb});
      actions.push_back({Act::bw, rank, mb});
    }
    schedule.by_rank.push_back(std::move(actions));
  }
  return schedule;
}

}  // namespace heddle
