#pragma once

#include <fmt/format.h>

#include <array>

#include "base/json.h"
#include "bench/timed_pass.h"
#include "joined_rank.h"
#include "model/registry.h"
#include "planner/collectives.h"
#include "planner/linear_time.h"
#include "planner/predicted_step.h"

namespace heddle {

/// Ranks of a node, and products as waits.
inline constexpr int kPerNode = 2;
/// So that products take as many times as long as the exchange between nodes as on the second
/// cluster of FSMoE (moe.md 4.5), in the mean layer.
inline constexpr double kFlops = 6.6e9, kProductSeconds = 50e-6;

/// Seconds that a row's three products take on a rank that has a node's share of the width.
inline double products(double hidden, double width) {
  return 2.0 * 3.0 * width / kPerNode * hidden / kFlops;
}

/// Both networks of the nodes, measured, and the machine that the planner makes of them.
struct MeasuredNodes {
  planner::LinearFit between, within;
  planner::Machine machine;

  MeasuredNodes(World& world, const ExpertNodes& nodes)
      : between(line(world, *nodes.ep, kStep)), within(line(world, *nodes.etp, 2 * kStep)) {
    machine.name = "shaped nodes";
    machine.device = {.name = "products as waits",
                      .memory_bytes = 1e12,
                      .memory_bytes_per_s = 1e12,
                      .kernel_s = kProductSeconds,
                      .matrix_f32 = kFlops,
                      .vector_f32 = kFlops,
                      .gemm = {}};
    machine.device.gemm.tiles = 1;
    machine.device.gemm.tile[0] = {.rows = 1, .cols = 1};
    machine.links = {link("within", kPerNode, within), link("between", 0, between)};
    machine.software.contention = 0.0;
  }

  void print() const {
    for (const auto& [name, line] :
         {std::pair{"between nodes", between}, {"within a node", within}}) {
      fmt::print("All-to-all {}: {:.2f} ms + {:.3f} ms per MB of a rank's tensor, r2 {:.5f}\n",
                 name, 1e3 * line.time.fixed, 1e9 * line.time.per_element, line.r2);
    }
  }

 private:
  static constexpr std::int64_t kStep = 1 << 13;

  /// Of all-to-alls among the ranks of a communicator, by bytes of the tensor of each.
  static planner::LinearFit line(World& world, Communicator& ranks, std::int64_t step) {
    constexpr int kTimes = 7, kSteps[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64};
    std::vector<std::array<double, 2>> points;
    Memory memory;
    Stream stream(1);
    for (const int steps : kSteps) {
      const std::int64_t rows = steps * step / ranks.size();
      const Tensor in =
                       memory.zeros({rows * ranks.size(), 1}, DType::f32, MemoryTag::communication),
                   out =
                       memory.zeros({rows * ranks.size(), 1}, DType::f32, MemoryTag::communication);
      const std::vector<std::int64_t> each(static_cast<std::size_t>(ranks.size()), rows);
      const double seconds = median_seconds(
          world, kTimes, [&] { ranks.all_to_all(in, out, each, each, stream).wait(stream); });
      points.push_back({static_cast<double>(rows * ranks.size()) * sizeof(float), seconds});
    }
    return planner::fit_linear_time(points, planner::FittedErrors::relative);
  }

  /// Half of a tensor leaves.
  static planner::Link link(const char* name, int reach, const planner::LinearFit& line) {
    return {.name = name,
            .reach = reach,
            .bytes_per_s = 1.0 / (2.0 * line.time.per_element),
            .latency_s = line.time.fixed,
            .is_direct = true};
  }
};

}  // namespace heddle
