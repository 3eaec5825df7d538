#pragma once

#include <string>
#include <vector>

#include "tensor/device.h"
#include "tensor/dtype.h"

namespace heddle {

/// What bounds an operation: the bytes it must read and write, or the arithmetic of its products,
/// held against a large square one, one dense product of its own size, or attention of the same
/// heads and tokens with the plain causal mask.
enum class Bound { copy, gemm, dense, causal };

struct OpBenchResult {
  std::string name, size;
  Bound bound;
  double seconds;  ///< median of one call
  double rate;     ///< GB/s or GFLOP/s
  double limit;    ///< the same unit: the copy or product measured in turns with the operation

  double fraction() const { return rate / limit; }
};

struct OpsBenchOptions {
  int threads = 1;
  Device device = {};
  DType dtype = DType::f32;  ///< of activations and weights: f32, or on CUDA bf16
  double seconds = 0.1;      ///< shortest time spent on one operation
  std::string filter = {};   ///< only operations whose name contains this
};

/// Times every operation at the sizes of a training step, in turns with what bounds it.
/// Error(usage) when no name matches the filter.
std::vector<OpBenchResult> bench_ops(const OpsBenchOptions& options);

}  // namespace heddle
