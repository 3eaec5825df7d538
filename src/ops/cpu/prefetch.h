#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "ops/cpu/attention_problem.h"

namespace heddle::ops::cpu {

/// Rows that will be needed soon, asked for a few at a time between pieces of arithmetic. Rows of a
/// head lie far apart, which the hardware does not foresee: without this, attention on short
/// sequences mostly waits for memory. Asking for many at once would fill the core's queue of misses
/// and make the arithmetic wait as well.
class Prefetcher {
 public:
  void clear() { count_ = current_ = rows_ = 0; }

  /// Positions [begin, end) of `heads` heads from `head`. Beyond kCapacity ranges it is ignored:
  /// this is only a hint.
  template <class T>
  void add(const HeadView<T>& view, std::int64_t b, std::int64_t begin, std::int64_t end,
           std::int64_t head, std::int64_t heads, std::int64_t width) {
    if (begin >= end || count_ == kCapacity) return;
    constexpr auto kBytes = static_cast<std::int64_t>(sizeof(T));
    ranges_[count_++] = {.row = reinterpret_cast<const char*>(view.at(b, begin, head)),
                         .row_bytes = width * kBytes,
                         .head_stride = view.head * kBytes,
                         .position_step = view.position * kBytes - heads * view.head * kBytes,
                         .heads = heads,
                         .head = 0,
                         .left = (end - begin) * heads};
    rows_ += (end - begin) * heads;
  }

  /// Chooses the rows per step so that `steps` steps ask for everything.
  void spread(std::int64_t steps) { rows_per_step_ = steps > 0 ? (rows_ + steps - 1) / steps : 0; }

  void step() {
    constexpr std::int64_t kLineBytes = 64;
    for (std::int64_t n = 0; n < rows_per_step_ && current_ < count_; ++n) {
      Range& range = ranges_[current_];
      for (std::int64_t i = 0; i < range.row_bytes; i += kLineBytes) {
        __builtin_prefetch(range.row + i, 0, 2);
      }
      range.row += range.head_stride;
      if (++range.head == range.heads) {
        range.head = 0;
        range.row += range.position_step;
      }
      if (--range.left == 0) ++current_;
    }
  }

 private:
  struct Range {
    const char* row;
    std::int64_t row_bytes, head_stride, position_step, heads, head, left;
  };
  static constexpr std::size_t kCapacity = 12;

  Range ranges_[kCapacity];
  std::size_t count_ = 0, current_ = 0;
  std::int64_t rows_ = 0, rows_per_step_ = 0;
};

}  // namespace heddle::ops::cpu
