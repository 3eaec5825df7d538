#pragma once

#include <utility>

#include "ops/elementwise.h"
#include "tensor/memory.h"

namespace heddle {

/// A tensor that a step changes before it is decided, as it was before: where a step may be
/// interrupted and taken again (docs/design/050-runs-that-outlive-ranks.md). Elsewhere nothing is
/// kept, and what is there counts.
class Earlier {
 public:
  Earlier() = default;
  /// Of one like `now`.
  Earlier(const Tensor& now, Memory& memory)
      : values_(memory.zeros(now.shape(), now.dtype(), MemoryTag::optimizer)) {}

  /// To be called before a step changes `now`, each time.
  void keep(const Tensor& now, Stream& stream) {
    if (values_.defined() && !std::exchange(counts_, true)) ops::copy(now, values_, stream);
  }
  /// The step is decided: `now` counts.
  void settle() { counts_ = false; }
  /// As the last step that was decided has left it.
  const Tensor& decided(const Tensor& now) const { return counts_ ? values_ : now; }

 private:
  Tensor values_;
  bool counts_ = false;
};

}  // namespace heddle
