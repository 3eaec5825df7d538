#include "parallel/schedule/schedule.h"

#include <algorithm>

namespace heddle {

std::vector<int> stages_of(const Schedule& schedule, int rank) {
  std::vector<int> stages;
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    if (schedule.rank_of(stage) == rank) stages.push_back(stage);
  }
  return stages;
}

std::vector<double> peak_in_flight(const Schedule& schedule) {
  std::vector<double> peaks;
  for (int rank = 0; rank < schedule.ranks(); ++rank) {
    int now = 0, peak = 0;
    for (const Action& action : schedule.by_rank[static_cast<std::size_t>(rank)]) {
      if (action.act == Act::f) peak = std::max(peak, ++now);
      if (action.act == Act::w || action.act == Act::bw) --now;
    }
    const std::size_t parts = std::max<std::size_t>(1, stages_of(schedule, rank).size());
    peaks.push_back(static_cast<double>(peak) / static_cast<double>(parts));
  }
  return peaks;
}

}  // namespace heddle
