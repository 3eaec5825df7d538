#include "parallel/schedule/generators/generators.h"
#include "parallel/schedule/generators/placement.h"

namespace heddle::generators {
namespace {

/// At its x-th turn rank r does F(x), B(x - depth (p-1-r)) and W(x - depth (p-1)), where these are
/// micro-batches of the step.
Schedule zb_h(const PipeShape& shape, int depth) {
  Schedule schedule = looped(shape);
  const int last = shape.ranks - 1;
  for (int rank = 0; rank <= last; ++rank) {
    const auto emit = [&](Act act, int mb) {
      if (mb < 0 || mb >= shape.microbatches) return;
      schedule.by_rank[static_cast<std::size_t>(rank)].push_back({act, rank, mb});
    };
    for (int x = 0; x < shape.microbatches + depth * last; ++x) {
      emit(Act::f, x);
      emit(Act::b, x - depth * (last - rank));
      emit(Act::w, x - depth * last);
    }
  }
  return schedule;
}

}  // namespace

Schedule zb_h1(const PipeShape& shape) { return zb_h(shape, 1); }

Schedule zb_h2(const PipeShape& shape) { return zb_h(shape, 2); }

}  // namespace heddle::generators
