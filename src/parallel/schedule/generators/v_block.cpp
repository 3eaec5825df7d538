#include <algorithm>
#include <array>
#include <deque>

#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/generators/placement.h"

namespace heddle::generators {
namespace {

/// When a rank begins what it does with micro-batch 0, in units of f = b = w. Micro-batch q follows
/// kPeriod q later; no two of the four are equal modulo kPeriod, and the two slots left in each
/// period take the weight gradients.
struct Block {
  int f0, f1, b1, b0;
};
constexpr int kPeriod = 6;

/// Lays the blocks of all micro-batches into slots and puts each weight gradient into the first
/// free slot behind its b.
std::vector<Action> repeat(const Block& block, const std::array<int, 2>& stages, int microbatches) {
  const std::array<std::pair<int, Action>, 4> pattern = {{{block.f0, {Act::f, stages[0]}},
                                                          {block.f1, {Act::f, stages[1]}},
                                                          {block.b1, {Act::b, stages[1]}},
                                                          {block.b0, {Act::b, stages[0]}}}};
  std::vector<Action> actions;
  std::deque<Action> waiting;
  const int end = block.b0 + kPeriod * microbatches;
  for (int slot = 0; slot < end || !waiting.empty(); ++slot) {
    const auto due = std::ranges::find_if(pattern, [&](const auto& entry) {
      const int since = slot - entry.first;
      return since >= 0 && since % kPeriod == 0 && since / kPeriod < microbatches;
    });
    if (due != pattern.end()) {
      Action action = due->second;
      action.microbatch = (slot - due->first) / kPeriod;
      actions.push_back(action);
      if (action.act == Act::b) waiting.push_back({Act::w, action.stage, action.microbatch});
    } else if (!waiting.empty()) {
      actions.push_back(waiting.front());
      waiting.pop_front();
    }
  }
  return actions;
}

template <class BlockOfRank>
Schedule v_block(const PipeShape& shape, BlockOfRank block_of) {
  Schedule schedule = v_shaped(shape);
  for (int rank = 0; rank < shape.ranks; ++rank) {
    schedule.by_rank[static_cast<std::size_t>(rank)] =
        repeat(block_of(rank), {rank, 2 * shape.ranks - 1 - rank}, shape.microbatches);
  }
  return schedule;
}

}  // namespace

Schedule v_min(const PipeShape& shape) {
  const int p = shape.ranks;
  const int wait = p % 3 == 0 ? 2 : 0;
  return v_block(shape, [=](int rank) {
    return Block{rank, 2 * p - rank - 1, 2 * p + wait + rank, 4 * p + wait - rank - 1};
  });
}

Schedule v_half(const PipeShape& shape) {
  const int p = shape.ranks;
  const int wait = p % 2 == 0 ? 3 : 0;
  return v_block(shape, [=](int rank) {
    return Block{2 * rank, 3 * p - rank - 2, 3 * p + wait + 2 * rank - 1, 6 * p + wait - rank - 2};
  });
}

}  // namespace heddle::generators
