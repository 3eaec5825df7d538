#include <algorithm>
#include <array>
#include <map>

#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/generators/placement.h"

namespace heddle::generators {
namespace {

/// Fills one rank's list: each call takes the next micro-batch of that kind and chunk, as long as
/// there is one.
class RankOfV {
 public:
  RankOfV(Schedule& schedule, int rank)
      : actions_(schedule.by_rank[static_cast<std::size_t>(rank)]),
        microbatches_(schedule.microbatches),
        stage_{rank, 2 * schedule.ranks() - 1 - rank} {}

  int done(Act act, int chunk) { return next_[{act, chunk}]; }
  bool has(Act act, int chunk) { return done(act, chunk) < microbatches_; }
  void emit(Act act, int chunk) {
    if (!has(act, chunk)) return;
    actions_.push_back({act, stage_[static_cast<std::size_t>(chunk)], next_[{act, chunk}]++});
  }

 private:
  std::vector<Action>& actions_;
  int microbatches_;
  std::array<int, 2> stage_;
  std::map<std::pair<Act, int>, int> next_;
};

void fill(RankOfV out, int ranks, int rank) {
  for (int i = 0; i < 2 * (ranks - rank) - 1; ++i) out.emit(Act::f, 0);
  for (int i = 0; i < rank; ++i) {
    out.emit(Act::f, 1);
    out.emit(Act::f, 0);
  }
  const auto whole_backward = [&](int chunk) {
    out.emit(Act::b, chunk);
    out.emit(Act::w, chunk);
  };
  for (int i = 0; i < ranks - rank; ++i) {
    out.emit(Act::f, 1);
    whole_backward(1);
  }
  while (out.done(Act::f, 1) < out.done(Act::f, 0) || out.has(Act::f, 0)) {
    out.emit(Act::f, 0);
    whole_backward(0);
    out.emit(Act::f, 1);
    whole_backward(1);
  }
  for (int i = 0; i < rank; ++i) {
    out.emit(Act::b, 0);
    out.emit(Act::b, 1);
  }
  for (int i = 0; i < ranks - rank; ++i) whole_backward(0);
  while (out.has(Act::w, 1)) out.emit(Act::w, 1);
  while (out.has(Act::w, 0)) out.emit(Act::w, 0);
}

}  // namespace

Schedule zb_v(const PipeShape& shape) {
  // The closed form needs two micro-batches per rank.
  PipeShape filled = shape;
  filled.microbatches = std::max(shape.microbatches, 2 * shape.ranks);
  Schedule schedule = v_shaped(filled);
  for (int rank = 0; rank < shape.ranks; ++rank) {
    fill(RankOfV(schedule, rank), shape.ranks, rank);
  }
  return keep_first(std::move(schedule), shape.microbatches);
}

}  // namespace heddle::generators
