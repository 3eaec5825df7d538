#pragma once

#include <string>
#include <vector>

#include "comm/world.h"
#include "parallel/sequence/context_shape.h"
#include "tensor/stream.h"

namespace heddle {

struct ContextBenchOptions {
  std::int64_t tokens = 4096;
  std::vector<std::int64_t> documents = {};  ///< none: one
  int heads = 8, key_heads = 8, head_dim = 64;
  DType dtype = DType::f32;
  int rounds = 7;
  /// 0: blocks are computed. Otherwise a rank waits in their place for as long as a device of so
  /// many FLOP/s would take: messages are real, and ranks that share cores are no hindrance.
  double emulated_flops_per_second = 0.0;
};

/// All methods that the heads allow, and the orders of ring, which comes first.
std::vector<ContextShape> shapes_of(const ContextBenchOptions& options, int ranks);

/// One way to share attention, timed on all ranks at once.
struct ContextBenchResult {
  ContextShape shape;                                ///< resolved
  double forward_seconds = 0, backward_seconds = 0;  ///< until the last rank is done; medians
  double predicted_seconds = 0;                      ///< of both, played with the rates below
  std::int64_t sent_bytes = 0;                       ///< by the rank that sends most
  double seconds() const { return forward_seconds + backward_seconds; }
};

struct ContextBenchReport {
  double pairs_per_second = 0;       ///< forward, of one rank while all compute, in all heads
  double backward_factor = 0;        ///< of a pair, over forward
  double link_bytes_per_second = 0;  ///< of one rank while all send to the next
  /// By how much a byte that is sent or received delays a rank that computes meanwhile. 0 where
  /// blocks are emulated: nobody computes.
  double busy_seconds_per_byte = 0;
  std::vector<ContextBenchResult> results;
};

/// Every rank calls it. Times all methods in turns; beside them one block of attention, messages
/// from each rank to the next, and both at once, from which the simulator predicts each method.
ContextBenchReport bench_context(World& world, Stream& stream, const ContextBenchOptions& options);

}  // namespace heddle
