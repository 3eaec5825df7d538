#include <algorithm>

#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/generators/placement.h"

namespace heddle::generators {
namespace {

struct Item {
  int microbatch, chunk;
};

/// How many micro-batches a rank takes through one chunk before it turns to the next: at least one
/// per rank, so that the first is back from the other ranks when its next chunk is due. Where the
/// ranks do not divide the micro-batches, the first groups are larger by one or more; a small group
/// at the end would wait for itself in every chunk.
std::vector<int> group_sizes(const PipeShape& shape) {
  const int groups = std::max(1, shape.microbatches / shape.ranks);
  std::vector<int> sizes(static_cast<std::size_t>(groups), shape.microbatches / groups);
  for (int i = 0; i < shape.microbatches % groups; ++i) ++sizes[static_cast<std::size_t>(i)];
  return sizes;
}

/// The order in which a rank takes micro-batches through its chunks.
std::vector<Item> forward_order(const std::vector<int>& groups, int chunks) {
  std::vector<Item> order;
  int begin = 0;
  for (const int size : groups) {
    for (int chunk = 0; chunk < chunks; ++chunk) {
      for (int i = 0; i < size; ++i) order.push_back({begin + i, chunk});
    }
    begin += size;
  }
  return order;
}

}  // namespace

Schedule interleaved(const PipeShape& shape) {
  if (shape.chunks == 1) return one_f_one_b(shape);
  const auto groups = group_sizes(shape);
  const auto order = forward_order(groups, shape.chunks);
  Schedule schedule = looped(shape);
  for (int rank = 0; rank < shape.ranks; ++rank) {
    auto& actions = schedule.by_rank[static_cast<std::size_t>(rank)];
    const auto forward = [&](const Item& item) {
      actions.push_back({Act::f, item.chunk * shape.ranks + rank, item.microbatch});
    };
    const auto backward = [&](const Item& item) {
      const int chunk = shape.chunks - 1 - item.chunk;
      actions.push_back({Act::bw, chunk * shape.ranks + rank, item.microbatch});
    };
    const auto warm_up =
        std::min(order.size(), static_cast<std::size_t>(2 * (shape.ranks - rank - 1) +
                                                        (shape.chunks - 1) * groups.front()));
    for (std::size_t k = 0; k < warm_up; ++k) forward(order[k]);
    for (std::size_t k = 0; k < order.size(); ++k) {
      if (warm_up + k < order.size()) forward(order[warm_up + k]);
      backward(order[k]);
    }
  }
  return schedule;
}

}  // namespace heddle::generators
