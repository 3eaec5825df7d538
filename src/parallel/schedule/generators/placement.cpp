#include "parallel/schedule/generators/placement.h"

namespace heddle::generators {

Schedule looped(const PipeShape& shape) {
  Schedule schedule{.microbatches = shape.microbatches, .rank_of_stage = {}, .by_rank = {}};
  for (int stage = 0; stage < shape.ranks * shape.chunks; ++stage) {
    schedule.rank_of_stage.push_back(stage % shape.ranks);
  }
  schedule.by_rank.resize(static_cast<std::size_t>(shape.ranks));
  return schedule;
}

Schedule v_shaped(const PipeShape& shape) {
  Schedule schedule{.microbatches = shape.microbatches, .rank_of_stage = {}, .by_rank = {}};
  for (int rank = 0; rank < shape.ranks; ++rank) schedule.rank_of_stage.push_back(rank);
  for (int rank = shape.ranks; rank-- > 0;) schedule.rank_of_stage.push_back(rank);
  schedule.by_rank.resize(static_cast<std::size_t>(shape.ranks));
  return schedule;
}

Schedule keep_first(Schedule schedule, int microbatches) {
  schedule.microbatches = microbatches;
  for (auto& actions : schedule.by_rank) {
    std::erase_if(actions, [=](const Action& action) { return action.microbatch >= microbatches; });
  }
  return schedule;
}

}  // namespace heddle::generators
