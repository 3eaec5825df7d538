#include "planner/codec_time.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "codec/registry.h"
#include "planner/cost.h"
#include "planner/machine_text.h"
#include "planner/measured_rows.h"
#include "planner/simulated_step.h"
#include "support/source_dir.h"

namespace heddle::planner {
namespace {

Machine h200() { return read_machine(source_dir() + "/configs/systems/h200-hgx-ndr.toml"); }

TEST(CodecTime, IsThatOfTheMachineFilesRates) {
  Machine machine = h200();
  machine.codecs = {
      {.codec = "int8:128", .encode = 100e9, .encode_with_residual = 50e9, .decode = 200e9}};
  const auto int8 = codec::make_codec("int8");
  EXPECT_DOUBLE_EQ(encode_seconds(machine, int8.get(), 1e9), 0.04);
  EXPECT_DOUBLE_EQ(encode_seconds(machine, int8.get(), 1e9, true), 0.08);
  EXPECT_DOUBLE_EQ(decode_seconds(machine, int8.get(), 1e9), 0.02);
  EXPECT_EQ(encode_seconds(machine, nullptr, 1e9), 0.0);
}

TEST(CodecTime, OfOtherParametersIsThatOfTheSameCodec) {
  Machine machine = h200();
  machine.codecs = {
      {.codec = "zfp:8:4", .encode = 100e9, .encode_with_residual = 50e9, .decode = 200e9}};
  EXPECT_DOUBLE_EQ(encode_seconds(machine, codec::make_codec("zfp:16").get(), 1e9), 0.04);
  EXPECT_NE(encode_seconds(machine, codec::make_codec("int8").get(), 1e9), 0.04);
}

TEST(CodecTime, IsBoundByTheMemoryWhereNoRateWasMeasured) {
  const Machine machine = h200();
  const auto int8 = codec::make_codec("int8");
  const double bytes = 4.0 + 132.0 / 128.0;
  EXPECT_NEAR(decode_seconds(machine, int8.get(), 1e9) * machine.device.memory_bytes_per_s / 1e9,
              bytes, 1e-9);
  EXPECT_NEAR(
      encode_seconds(machine, int8.get(), 1e9, true) * machine.device.memory_bytes_per_s / 1e9,
      bytes + 8.0, 1e-9);
}

TEST(CodecTime, IsReadFromMachineFilesAndWrittenToThem) {
  Machine machine = h200();
  machine.codecs = {
      {.codec = "zfp:8:4", .encode = 90e9, .encode_with_residual = 40e9, .decode = 80e9}};
  const Machine read = parse_machine(machine_text(machine, {}), "m.toml");
  ASSERT_EQ(read.codecs.size(), 1u);
  EXPECT_EQ(read.codecs[0].codec, "zfp:8:4");
  EXPECT_NEAR(read.codecs[0].encode_with_residual, 40e9, 1e3);
  machine.codecs[0].codec = "int9";
  try {
    parse_machine(machine_text(machine, {}), "m.toml");
    FAIL() << "a codec that does not exist";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("there is no codec \"int9\""), std::string::npos)
        << error.what();
  }
}

/// Servers on a slow network, where gradients take most of a step.
TEST(CompressedPlans, AreFasterOnASlowNetworkInSearchAndSimulation) {
  Machine machine = h200();
  machine.links.back().bytes_per_s = 1e9;
  Job plain{.spec = gpt_spec(2048, 16, 8, 1024),
            .seq_len = 1024,
            .batch = 64,
            .stack = Stack::heddle(DType::bf16)};
  Job coded = plain;
  coded.compress = {.gradients = "int8", .weights = "int8"};
  for (int zero = 0; zero < 4; ++zero) {
    const Candidate plan{{.dp = 32, .zero = zero}, Recompute::none, 1};
    const auto estimated = [&](const Job& job) {
      const Split split = split_blocks(job, plan.schedule, plan.pp, plan.chunks, plan.vocabulary);
      return estimate_time(machine, job, plan, split, block_cost(machine, job, plan)).total;
    };
    const double plain_seconds = simulate_step(machine, plain, plan, {}).seconds;
    const double coded_seconds = simulate_step(machine, coded, plan, {}).seconds;
    EXPECT_LT(coded_seconds, 0.6 * plain_seconds) << "zero " << zero;
    EXPECT_LT(estimated(coded), 0.6 * estimated(plain)) << "zero " << zero;
  }
}

}  // namespace
}  // namespace heddle::planner
