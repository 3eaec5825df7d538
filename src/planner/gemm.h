#pragma once

#include <cstdint>

#include "planner/machine.h"

namespace heddle::planner {

/// `batch` products [m, k] x [k, n].
struct GemmShape {
  double m = 1, n = 1, k = 1, batch = 1;
};

struct TileCount {
  double tiles = 0, waves = 0;
  double efficiency = 0;  ///< busy share of the processors over all waves
};

/// How a product falls into tiles of rows x cols, and those into waves of one per processor.
TileCount count_tiles(const GemmShape& shape, double rows, double cols, int processors);

/// Of the largest power of two that divides m, n and k: 0 for 1, 1 for 2, ... at most 6.
int alignment_power(const GemmShape& shape);

/// The rate that alignment leaves: by the largest power of two that divides m, n and k, up to 64.
double alignment_efficiency(const GemmModel& model, const GemmShape& shape);

/// Seconds of the product with its best tile, elements of `element_bytes`: bound by the matrix
/// units or by memory, and never less than a kernel takes. `efficiency` scales the model's.
double gemm_seconds(const Device& device, double matrix_rate, double element_bytes,
                    const GemmShape& shape, double efficiency = 1.0);

}  // namespace heddle::planner
