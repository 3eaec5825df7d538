#pragma once

#include <vector>

#include "comm/world.h"
#include "simulator/decode_plan.h"
#include "tensor/stream.h"

namespace heddle {

struct DecodeBenchOptions {
  std::int64_t context = 32768;  ///< tokens in the cache, of all ranks together
  int heads = 8, key_heads = 8, head_dim = 64;
  DType dtype = DType::f32;
  int rounds = 5;
};

/// One way to attend to a divided KV cache, timed on all ranks at once.
struct DecodeBenchResult {
  DecodeMethod method = DecodeMethod::tree;
  double seconds = 0.0;         ///< until the last rank has the output; a median
  std::int64_t sent_bytes = 0;  ///< by the rank that sends most
  /// From the tree's output, of any element on any rank, over the largest element.
  double difference = 0.0;
};

/// Every rank calls it. Times the attention of one new token in one layer, in turns: by tree, which
/// is the layer that `generate` uses, and by moving K and V around a ring or to all ranks. All
/// ranks end with the same output; where methods differ by more than rounding it is our bug.
std::vector<DecodeBenchResult> bench_decode(World& world, Stream& stream,
                                            const DecodeBenchOptions& options);

}  // namespace heddle
