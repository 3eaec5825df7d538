#pragma once

#include <cstdint>

#include "planner/machine.h"

namespace heddle::planner {

/// `batch` products [m, k] x [k, n].
struct GemmShape {
  double m = 1, n = 1, k = 1, batch = 1;
  /// Which of m, n and k are the inputs of the linear layer that makes the product, in any of its
  /// three passes; 0: none.
  double inputs = 0;
};

struct TileCount {
  double tiles = 0, waves = 0;
  double efficiency = 0;  ///< busy share of the processors over all waves
};

/// How a product falls into tiles of rows x cols, and those into waves of one per processor.
TileCount count_tiles(const GemmShape& shape, double rows, double cols, int processors);

/// The largest powers of two that divide the inputs of a layer, and the other dimensions: 0 for 1,
/// 1 for 2, ... at most 6, for 64 and more.
struct AlignmentPowers {
  int inputs = 0, others = 0;
};
AlignmentPowers alignment_powers(const GemmShape& shape);

/// The rate that alignment leaves.
double alignment_efficiency(const GemmModel& model, const GemmShape& shape);

/// Seconds of the product with its best tile, elements of `element_bytes`: bound by the matrix
/// units or by memory, and never less than a kernel takes. `efficiency` scales the model's.
double gemm_seconds(const Device& device, double matrix_rate, double element_bytes,
                    const GemmShape& shape, double efficiency = 1.0);

}  // namespace heddle::planner
