#include "planner/gemm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "planner/collectives.h"
#include "support/source_dir.h"

namespace heddle::planner {
namespace {

Machine system(const std::string& name) {
  return read_machine(source_dir() + "/configs/systems/" + name + ".toml");
}

TEST(Tiles, AndWavesAreThoseOfTheKnownProducts) {
  struct Case {
    double m, n, tiles, waves_a100, efficiency_a100, efficiency_h100;
  };
  // 128 x 256 tiles on 108 and 132 processors.
  for (const Case& one :
       {Case{8192, 14336, 3584, 34, 0.976, 0.970}, Case{1024, 1536, 48, 1, 0.444, 0.364},
        Case{2048, 4608, 288, 3, 0.889, 0.727}}) {
    const GemmShape shape{one.m, one.n, 4096};
    const TileCount a100 = count_tiles(shape, 128, 256, 108),
                    h100 = count_tiles(shape, 128, 256, 132);
    EXPECT_EQ(a100.tiles, one.tiles);
    EXPECT_EQ(a100.waves, one.waves_a100);
    EXPECT_NEAR(a100.efficiency, one.efficiency_a100, 0.0005);
    EXPECT_NEAR(h100.efficiency, one.efficiency_h100, 0.0005);
  }
  EXPECT_EQ(count_tiles({8192, 14336, 1}, 128, 256, 132).waves, 28);
}

TEST(Gemm, OfAMisalignedWidthIsSlowerThanOfAWiderAlignedOne) {
  // Measured on an H100: 10922 gives 272.7 TFLOP/s, 10944 398.4 and 11008 395.0.
  const Machine machine = system("h200-hgx-ndr");
  const auto rate = [&](double width) {
    const GemmShape shape{8192, width, 4096};
    return 2 * shape.m * shape.n * shape.k /
           gemm_seconds(machine.device, machine.device.matrix_rate(DType::bf16), 2, shape);
  };
  EXPECT_NEAR(rate(10922) / rate(10944), 272.7 / 398.4, 0.05);
  for (const double width : {10848, 10880, 10912, 11008}) {
    EXPECT_NEAR(rate(width) / rate(10944), 1.0, 0.05) << width;
    EXPECT_GT(rate(width), rate(10922)) << width;
  }
}

TEST(Gemm, OfALayerIsSlowedByUnalignedInputsAndOutputsApart) {
  Machine machine = system("h200-hgx-ndr");
  machine.device.gemm.alignment[0] = 0.5;
  machine.device.gemm.input_alignment[0] = 0.25;
  const auto efficiency = [&](const GemmShape& shape) {
    return alignment_efficiency(machine.device.gemm, shape);
  };
  EXPECT_EQ(efficiency({8192, 5461, 2048, 1, 2048}), 0.5);
  EXPECT_EQ(efficiency({8192, 2048, 5461, 1, 5461}), 0.25);
  EXPECT_EQ(efficiency({8192, 5461, 2048, 1, 5461}), 0.25);  // the gradient of its inputs
  EXPECT_EQ(efficiency({5461, 5461, 8192, 1, 5461}), 0.25);
  EXPECT_EQ(efficiency({8192, 2048, 5461}), 0.5);  // of no layer
}

TEST(Gemm, OnAnA100HasTheMeasuredRatesOfALayer) {
  // h 4096, 16 heads, 4 sequences of 2048, 16 bits: 241.6, 234.9, 241.1 and 252.8 TFLOP/s.
  const Machine machine = system("a100-dgx-hdr");
  const auto rate = [&](double n, double k) {
    const GemmShape shape{8192, n, k};
    return 2e-12 * shape.m * n * k / gemm_seconds(machine.device, 312e12, 2, shape);
  };
  EXPECT_NEAR(rate(12288, 4096), 241.6, 0.08 * 241.6);
  EXPECT_NEAR(rate(4096, 4096), 234.9, 0.08 * 234.9);
  EXPECT_NEAR(rate(16384, 4096), 241.1, 0.08 * 241.1);
  EXPECT_NEAR(rate(4096, 16384), 252.8, 0.08 * 252.8);
}

TEST(Collectives, FollowTheMeasuredTableAndInterpolateItsLogarithms) {
  const Machine machine = system("a100-dgx-hdr");
  const auto microseconds = [&](CommOp op, int ranks, double mib) {
    return 1e6 * collective_seconds(machine, op, {ranks, ranks}, mib * 1024 * 1024);
  };
  EXPECT_NEAR(microseconds(CommOp::all_reduce, 8, 64), 580, 1e-6);
  EXPECT_NEAR(microseconds(CommOp::all_reduce, 8, 0.001), 92, 1e-6);
  EXPECT_NEAR(microseconds(CommOp::all_reduce, 8, 2048), 2 * 8196, 1e-6);
  EXPECT_NEAR(microseconds(CommOp::all_reduce, 2, 8), std::sqrt(60.0 * 129.0), 1e-6);
  EXPECT_NEAR(microseconds(CommOp::all_gather, 4, 256), 1928 / 2.0, 1e-6);
}

TEST(Collectives, BetweenServersShareTheAdaptersAndPayEveryStep) {
  Machine machine = system("a100-800g");
  const Link& link = machine.links.back();
  const double bytes = 1e9;
  const GroupShape apart = group_shape(machine, 32, 8), together = group_shape(machine, 32, 1);
  EXPECT_EQ(apart.per_server, 1);
  EXPECT_EQ(together.per_server, 8);
  EXPECT_EQ(together.servers(), 4);
  EXPECT_NEAR(collective_seconds(machine, CommOp::all_reduce, apart, bytes),
              2.0 * 31 / 32 * bytes / (link.bytes_per_s * link.collective) + 2 * 32 * 20e-6, 1e-9);
  EXPECT_NEAR(
      collective_seconds(machine, CommOp::all_reduce, together, bytes),
      2.0 * 31 / 32 * bytes / (8 * link.bytes_per_s * link.collective) + 2 * 4 * (20e-6 + 7 * 4e-6),
      1e-9);
}

}  // namespace
}  // namespace heddle::planner
