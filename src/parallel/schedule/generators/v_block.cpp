#include <algorithm>

#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/generators/late_weights.h"
#include "parallel/schedule/generators/placement.h"
#include "parallel/schedule/generators/slot_grid.h"

namespace heddle::generators {
namespace {

/// When a rank begins what it does with micro-batch 0, in units of f = b = w. Micro-batch q follows
/// kPeriod q later; no two of the four are equal modulo kPeriod, and the two slots left in each
/// period take the weight gradients.
struct Block {
  int f0, f1, b1, b0;
};
constexpr int kPeriod = 6;

template <class BlockOfRank>
SlotGrid repeat(const PipeShape& shape, BlockOfRank block_of) {
  SlotGrid grid(v_shaped(shape));
  for (int rank = 0; rank < shape.ranks; ++rank) {
    const Block block = block_of(rank);
    const int first = rank, second = 2 * shape.ranks - 1 - rank;
    for (int mb = 0; mb < shape.microbatches; ++mb) {
      const int begin = kPeriod * mb;
      grid.put(begin + block.f0, {Act::f, first, mb});
      grid.put(begin + block.f1, {Act::f, second, mb});
      grid.put(begin + block.b1, {Act::b, second, mb});
      grid.put(begin + block.b0, {Act::b, first, mb});
    }
  }
  grid.put_weights();
  return grid;
}

/// `pause` slots more between the last forward and the first backward of a micro-batch.
SlotGrid repeat_v_half(const PipeShape& shape, int pause) {
  const int p = shape.ranks;
  const int wait = (p % 2 == 0 ? 3 : 0) + pause;
  return repeat(shape, [=](int rank) {
    return Block{2 * rank, 3 * p - rank - 2, 3 * p + wait + 2 * rank - 1, 6 * p + wait - rank - 2};
  });
}

}  // namespace

Schedule v_min(const PipeShape& shape) {
  const int p = shape.ranks;
  const int wait = p % 3 == 0 ? 2 : 0;
  return repeat(
             shape,
             [=](int rank) {
               return Block{rank, 2 * p - rank - 1, 2 * p + wait + rank, 4 * p + wait - rank - 1};
             })
      .in_order();
}

Schedule v_half(const PipeShape& shape) {
  SlotGrid grid = repeat_v_half(shape, 0);
  // The order is made in slots, in the memory that the block needs in its steady state.
  const double fullest = std::ranges::max(peak_in_flight(grid.in_order()));
  const auto capacity = static_cast<int>(2.0 * fullest);
  grid.pull_forward(capacity);
  return with_late_weights(grid.in_order(), capacity);
}

Schedule vocabulary_v_half(const PipeShape& shape) {
  const int p = shape.ranks;
  const int barriers = shape.vocabulary == 1 ? 2 : 1;
  SlotGrid grid = repeat_v_half(shape, barriers * kPeriod);
  // All ranks do the passes of a micro-batch at the same time: one slot behind its last forward.
  const auto pass_slot = [=](int mb) { return 3 * p + kPeriod * mb; };
  const int last = 2 * p - 1;
  for (int rank = 0; rank < p; ++rank) {
    for (int mb = 0; mb < shape.microbatches; ++mb) {
      // A period before the first rank's forward, and a period or more behind its backward.
      grid.put_before(rank, std::max(0, kPeriod * (mb - 1)), {Act::embed_f, 0, mb});
      grid.put_before(rank, pass_slot(mb + p / 2 + 3), {Act::embed_b, 0, mb});
      if (mb > 0) grid.put_before(rank, pass_slot(mb), {Act::vocab_t, last, mb - 1});
      grid.put_before(rank, pass_slot(mb), {Act::vocab_s, last, mb});
    }
    const int latest = shape.microbatches - 1;
    grid.put_before(rank, pass_slot(latest + 1), {Act::vocab_t, last, latest});
  }
  Schedule schedule = grid.in_order();
  schedule.vocabulary = shape.vocabulary;
  return schedule;
}

}  // namespace heddle::generators
