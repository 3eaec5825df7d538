#include "planner/gemm.h"

#include <algorithm>
#include <cmath>

namespace heddle::planner {
namespace {

/// 0 for an odd size, 1 for twice an odd one, ... at most 6.
int powers_of_two(double size) {
  auto whole = static_cast<std::int64_t>(size);
  int powers = 0;
  for (; powers < GemmModel::kAlignments - 1 && whole % 2 == 0; whole /= 2) ++powers;
  return powers;
}

}  // namespace

TileCount count_tiles(const GemmShape& shape, double rows, double cols, int processors) {
  TileCount count;
  count.tiles = std::ceil(shape.m / rows) * std::ceil(shape.n / cols) * shape.batch;
  count.waves = std::ceil(count.tiles / processors);
  count.efficiency = count.tiles / (count.waves * processors);
  return count;
}

AlignmentPowers alignment_powers(const GemmShape& shape) {
  AlignmentPowers powers{GemmModel::kAlignments - 1, GemmModel::kAlignments - 1};
  bool has_inputs = false;
  for (const double size : {shape.m, shape.n, shape.k}) {
    const bool is_inputs = !has_inputs && size == shape.inputs;
    has_inputs = has_inputs || is_inputs;
    int& power = is_inputs ? powers.inputs : powers.others;
    power = std::min(power, powers_of_two(size));
  }
  return powers;
}

double alignment_efficiency(const GemmModel& model, const GemmShape& shape) {
  const AlignmentPowers powers = alignment_powers(shape);
  return std::min(model.input_alignment[static_cast<std::size_t>(powers.inputs)],
                  model.alignment[static_cast<std::size_t>(powers.others)]);
}

double gemm_seconds(const Device& device, double matrix_rate, double element_bytes,
                    const GemmShape& shape, double efficiency) {
  const GemmModel& model = device.gemm;
  const double of_size = shape.k / (shape.k + model.half_depth) * shape.m /
                         (shape.m + model.half_rows) * shape.n / (shape.n + model.half_columns);
  const double reached =
      matrix_rate * model.efficiency * efficiency * of_size * alignment_efficiency(model, shape);
  double best = 1e30;
  for (int i = 0; i < model.tiles; ++i) {
    const GemmModel::Tile& tile = model.tile[static_cast<std::size_t>(i)];
    const TileCount count = count_tiles(shape, tile.rows, tile.cols, device.processors);
    const double full = count.tiles / device.processors;
    const double waves = full + model.tail * (count.waves - full);
    const double work = 2.0 * tile.rows * tile.cols * shape.k * device.processors;
    best = std::min(best, waves * work / (reached * tile.efficiency));
  }
  const double bytes =
      element_bytes * shape.batch * (shape.m * shape.n + shape.m * shape.k + shape.n * shape.k);
  return std::max(best, bytes / device.memory_bytes_per_s) + device.kernel_s;
}

}  // namespace heddle::planner
