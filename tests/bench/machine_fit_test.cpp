#include "bench/machine_fit.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "planner/gemm.h"
#include "planner/machine_text.h"

namespace heddle {
namespace {

/// Rates as a device with these constants would give them.
RankRates rates_of(double flops, double half_depth, double half_rows, int ranks) {
  RankRates rates{.ranks = ranks, .threads = 1, .product_flops = flops};
  planner::Device device;
  device.memory_bytes_per_s = 1e13;
  device.gemm.tiles = 1;
  device.gemm.tile[0] = {1, 1, 1.0};
  device.gemm.half_depth = half_depth;
  device.gemm.half_rows = half_rows;
  for (const double m : {128.0, 512.0, 2048.0}) {
    for (const double n : {192.0, 768.0, 3072.0}) {
      for (const double k : {256.0, 1024.0}) {
        rates.products.push_back({ProductSample::Kind::output, m, n, k,
                                  planner::gemm_seconds(device, flops, 4.0, {m, n, k, 1.0})});
      }
    }
  }
  rates.attention_flops = 0.25 * flops;
  rates.block_bytes = 2e10;
  rates.copy_bytes = 1e10;
  rates.logit_seconds = 1e-9;
  rates.parameter_seconds = 2e-9;
  rates.kernel_seconds = 0.0;
  return rates;
}

MachineSamples samples_of_two() {
  return {.name = "m",
          .device_name = "cpu",
          .link_name = "threads",
          .memory_bytes = 8e9,
          .rates = {rates_of(2e11, 30, 10, 1), rates_of(1e11, 60, 20, 2)},
          .links = {{.ranks = 2,
                     .collectives = {{CommOp::all_reduce, 2, {{4096, 1e-5}, {16384, 2e-5}}},
                                     {CommOp::all_gather, 2, {{4096, 1e-5}, {16384, 2e-5}}}},
                     .message_latency = 1e-6,
                     .message_bytes = 4e9}}};
}

TEST(FitMachine, FindsTheConstantsThatMadeTheSamples) {
  const planner::Machine machine = fit_machine(samples_of_two());
  EXPECT_NEAR(machine.device.matrix_f32, 2e11, 0.02 * 2e11);
  EXPECT_NEAR(machine.device.gemm.half_depth, 30, 6);
  ASSERT_EQ(machine.shared.size(), 1u);
  EXPECT_NEAR(machine.shared[0].device.matrix_f32, 1e11, 0.02e11);
  EXPECT_LT(product_error(machine.device, DType::f32, samples_of_two().rates[0]), 0.01);
  EXPECT_NEAR(machine.software.fused_attention, 0.25, 0.01);
  EXPECT_NEAR(machine.software.optimizer_bytes, 40.0, 1e-6);
  EXPECT_NEAR(machine.software.loss_bytes, 20.0, 1e-6);
  EXPECT_DOUBLE_EQ(machine.software.contention, 1.0);
}

TEST(FitMachine, GivesAMachineFileThatCanBeRead) {
  const planner::Machine machine = fit_machine(samples_of_two());
  const planner::Machine read = planner::parse_machine(planner::machine_text(machine, {}), "m");
  EXPECT_EQ(read.collectives.size(), 2u);
  EXPECT_EQ(read.collectives[0].ranks, 2);
  EXPECT_NEAR(read.collectives[0].points[1][1], 2e-5, 1e-9);
  EXPECT_EQ(read.shared[0].ranks, 2);
  EXPECT_GT(read.links[0].bytes_per_s, 0.0);
}

TEST(FitMachine, FindsWhatUnalignedProductsAndSizesOfHeadsReachOnAGpu) {
  MachineSamples samples{
      .name = "m", .device_name = "gpu", .memory_bytes = 8e10, .processors = 132};
  samples.is_gpu = true;
  samples.dtype = DType::bf16;
  samples.rates = {rates_of(2e11, 30, 10, 1)};
  planner::Device device = fit_machine(samples).device;
  device.gemm.alignment = {0.3, 0.5, 0.5, 0.9, 0.95, 1.0, 1.0};
  for (std::int64_t power = 1; power < 64; power *= 2) {
    for (const double n : {1984.0, 3008.0}) {
      const planner::GemmShape shape{2048.0, n + static_cast<double>(power), 1024.0, 1.0};
      samples.rates[0].products.push_back(
          {ProductSample::Kind::output, shape.m, shape.n, shape.k,
           planner::gemm_seconds(device, device.matrix_bf16, 2.0, shape)});
    }
  }
  samples.rates[0].attention_by_head = {{64, 5e10}, {80, 2e10}, {128, 1e11}};
  const planner::Machine fitted = fit_machine(samples);
  for (std::size_t i = 0; i < device.gemm.alignment.size(); ++i) {
    EXPECT_NEAR(fitted.device.gemm.alignment[i], device.gemm.alignment[i], 0.02) << i;
  }
  ASSERT_EQ(fitted.software.attention_by_head.size(), 3u);
  const auto reaches = [&](double head_dim) {
    return planner::attention_efficiency(fitted.software, head_dim) * fitted.device.matrix_bf16;
  };
  EXPECT_NEAR(reaches(80), 2e10, 1e8);
  EXPECT_NEAR(reaches(104), 6e10, 1e8);
  EXPECT_NEAR(reaches(256), 1e11, 1e8);
  const planner::Machine read = planner::parse_machine(planner::machine_text(fitted, {}), "m");
  EXPECT_NEAR(read.device.gemm.alignment[0], fitted.device.gemm.alignment[0], 1e-5);
  EXPECT_EQ(read.software.attention_by_head.size(), 3u);
}

TEST(FitMachine, AnAlignmentIsAsMuchSlowerAsThePassesOfALayerAreInTheMean) {
  MachineSamples samples{
      .name = "m", .device_name = "gpu", .memory_bytes = 8e10, .processors = 132};
  samples.is_gpu = true;
  samples.dtype = DType::bf16;
  samples.rates = {rates_of(2e11, 30, 10, 1)};
  const planner::Device device = fit_machine(samples).device;
  using Kind = ProductSample::Kind;
  const auto add = [&](Kind kind, double m, double n, double k, double slower) {
    const double aligned = planner::gemm_seconds(device, device.matrix_bf16, 2.0, {m, n, k, 1.0});
    samples.rates[0].products.push_back({kind, m, n, k, slower * aligned});
  };
  add(Kind::output, 8192, 5461, 2048, 1.0);
  add(Kind::input_gradient, 8192, 2048, 5461, 1.5);
  add(Kind::weight_gradient, 5461, 2048, 8192, 2.0);
  add(Kind::output, 8192, 2048, 5461, 2.0);
  add(Kind::input_gradient, 8192, 5461, 2048, 4.0);
  add(Kind::weight_gradient, 2048, 5461, 8192, 3.0);
  const planner::GemmModel fitted = fit_machine(samples).device.gemm;
  EXPECT_NEAR(fitted.alignment[0], 1 / 1.5, 1e-3);
  EXPECT_NEAR(fitted.input_alignment[0], 1 / 3.0, 1e-3);
  EXPECT_EQ(fitted.alignment[1], 1.0);
}

TEST(FitMachine, SamplesStandBesideWhatTheMachineGivesThem) {
  const MachineSamples samples = samples_of_two();
  const Json json = Json::parse(samples_json(samples, fit_machine(samples)).dump());
  ASSERT_EQ(json["products"].size(), samples.rates[0].products.size());
  const Json& first = json["products"][0];
  EXPECT_EQ(first["kind"], "output");
  EXPECT_EQ(first["m"], 128.0);
  EXPECT_EQ(first["seconds"], samples.rates[0].products[0].seconds);
  EXPECT_NEAR(first["fitted_seconds"].get<double>() / first["seconds"].get<double>(), 1.0, 0.05);
}

TEST(FitMachine, OfASingleRankNeedsNoLinks) {
  MachineSamples samples = samples_of_two();
  samples.rates.pop_back();
  samples.links.clear();
  const planner::Machine read =
      planner::parse_machine(planner::machine_text(fit_machine(samples), {}), "m");
  EXPECT_TRUE(read.shared.empty());
  EXPECT_TRUE(read.collectives.empty());
}

}  // namespace
}  // namespace heddle
