#include <algorithm>

#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/generators/placement.h"

namespace heddle::generators {
namespace {

struct Item {
  int microbatch, chunk;
};

/// The order in which a rank takes micro-batches through its chunks: groups of one micro-batch per
/// rank, each through all chunks.
std::vector<Item> forward_order(int groups, const PipeShape& shape) {
  std::vector<Item> order;
  for (int group = 0; group < groups; ++group) {
    for (int chunk = 0; chunk < shape.chunks; ++chunk) {
      for (int i = 0; i < shape.ranks; ++i) order.push_back({group * shape.ranks + i, chunk});
    }
  }
  return order;
}

}  // namespace

Schedule interleaved(const PipeShape& shape) {
  if (shape.chunks == 1) return one_f_one_b(shape);
  // The order is made for whole groups; micro-batches beyond the last are left out.
  const int groups = (shape.microbatches + shape.ranks - 1) / shape.ranks;
  const auto order = forward_order(groups, shape);
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
    const auto warm_up = std::min(
        order.size(),
        static_cast<std::size_t>(2 * (shape.ranks - rank - 1) + (shape.chunks - 1) * shape.ranks));
    for (std::size_t k = 0; k < warm_up; ++k) forward(order[k]);
    for (std::size_t k = 0; k < order.size(); ++k) {
      if (warm_up + k < order.size()) forward(order[warm_up + k]);
      backward(order[k]);
    }
  }
  return keep_first(std::move(schedule), shape.microbatches);
}

}  // namespace heddle::generators
