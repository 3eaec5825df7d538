#pragma once

#include "bench/context_bench.h"

namespace heddle {

/// What the ranks of one method compute, without messages.
struct ContextShares {
  ContextShape shape;                                ///< resolved
  double forward_seconds = 0, backward_seconds = 0;  ///< of all ranks together; medians
  double message_seconds = 0;  ///< beside them: copies in place of what would have been received
  double seconds() const { return forward_seconds + backward_seconds; }
};

struct ContextSharesReport {
  double whole_forward = 0, whole_backward = 0;  ///< the whole sequence on one rank; medians
  std::vector<ContextShares> methods;
  double whole() const { return whole_forward + whole_backward; }
};

/// Computes the share of each of `ranks` ranks after the other, here, in turns with the whole
/// sequence: how much attention loses by being cut. What a rank would receive is random.
ContextSharesReport bench_context_shares(int ranks, Stream& stream,
                                         const ContextBenchOptions& options);

}  // namespace heddle
