#pragma once

#include <cstddef>
#include <vector>

#include "parallel/schedule/schedule.h"

namespace heddle {

/// Lets every rank go through its actions in order, as far as it comes: `may_pass(action, rank)`
/// does an action, or returns false when it waits for another rank. True when all ranks came to
/// their end; otherwise `next` (by rank) says where they are stuck.
template <class MayPass>
bool advance_all(const std::vector<std::vector<Action>>& by_rank, std::vector<std::size_t>& next,
                 MayPass may_pass) {
  next.assign(by_rank.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
      for (; next[rank] < by_rank[rank].size(); ++next[rank]) {
        if (!may_pass(by_rank[rank][next[rank]], static_cast<int>(rank))) break;
        moved = true;
      }
    }
  }
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    if (next[rank] < by_rank[rank].size()) return false;
  }
  return true;
}

}  // namespace heddle
