#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "codec/codec.h"
#include "comm/world.h"

namespace heddle {

struct CommBenchOptions {
  std::int64_t smallest_bytes = std::int64_t{1} << 10;
  std::int64_t largest_bytes = std::int64_t{1} << 26;  ///< sizes grow by 4
  double seconds = 0.2;  ///< shortest time spent on one size of one operation
};

struct CommBenchResult {
  CommOp op = CommOp::all_reduce;
  std::int64_t bytes = 0;    ///< of the whole tensor
  double seconds = 0;        ///< median of one call on rank 0
  double bound_seconds = 0;  ///< the same of what bounds it
  double fraction = 0;       ///< the bound's time by ours, in the median of turns

  double rate() const { return static_cast<double>(bytes) / seconds * 1e-9; }  ///< GB/s
  double bound_rate() const { return static_cast<double>(bytes) / bound_seconds * 1e-9; }
};

/// What an operation on these tensors is compared with; made by all ranks at the same time.
using CommBound = std::function<void(CommOp op, const Tensor& whole, const Tensor& shard)>;

/// Times all_reduce, all_gather and reduce_scatter of f32 in turns with what bounds them. Every
/// rank calls it; results mean rank 0's.
std::vector<CommBenchResult> bench_comm(World& world, const CommBound& bound,
                                        const CommBenchOptions& options);

/// Times sums over all ranks of which only the codec's bytes travel (CompressedSum), beside
/// all_reduce of the same float32 tensors, which is the bound: a fraction of 2 is twice as fast.
/// On a GPU where `device` is one, with a world that moves tensors there.
std::vector<CommBenchResult> bench_compressed_sum(World& world, Device device,
                                                  const codec::Codec& codec,
                                                  const CommBenchOptions& options);

/// Every rank copies as many bytes as the whole tensor has.
CommBound copy_bound(Memory& memory);

}  // namespace heddle
