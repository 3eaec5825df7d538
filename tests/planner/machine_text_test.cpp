#include "planner/machine_text.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "support/source_dir.h"

namespace heddle::planner {
namespace {

std::string file(const std::string& name) {
  return source_dir() + "/configs/systems/" + name + ".toml";
}

/// A machine whose ranks share cores.
Machine shared_machine() {
  Machine machine = read_machine(file("a100-800g"));
  machine.software.contention = 1.0;
  machine.software.loss_bytes = 17.5;
  machine.device.gemm.half_rows = 12;
  SharedDevice shared{.ranks = 2, .device = machine.device, .software = machine.software};
  shared.device.matrix_f16 = 200e12;
  shared.device.memory_bytes_per_s = 900e9;
  shared.software.fused_attention = 0.25;
  shared.software.attention_by_head = {{64, 0.5}, {80, 0.25}};
  shared.device.gemm.input_alignment[0] = 0.125;
  shared.codecs = {
      {.codec = "int8:128", .encode = 4e9, .encode_with_residual = 2e9, .decode = 5e9}};
  machine.shared.push_back(shared);
  machine.codecs = shared.codecs;
  machine.codecs[0].encode = 9e9;
  machine.links.back().is_direct = true;
  return machine;
}

TEST(MachineText, IsReadBackAsTheMachineItCameFrom) {
  for (Machine machine : {read_machine(file("h200-hgx-ndr")), shared_machine()}) {
    machine.name = "a \"quoted\\ name\"";
    machine.pairs = {{5e9, 6e9}, {7e9, 8e9}};
    const std::string text = machine_text(machine, {"measured today"});
    EXPECT_EQ(text.find("# measured today\n"), 0u);
    const Machine read = parse_machine(text, "m.toml");
    EXPECT_EQ(read.name, machine.name);
    EXPECT_EQ(machine_text(read, {"measured today"}), text);
    EXPECT_EQ(read.links.size(), machine.links.size());
    EXPECT_EQ(read.pairs.size(), 2u);
    EXPECT_EQ(read.shared.size(), machine.shared.size());
    EXPECT_EQ(read.links.back().is_direct, machine.links.back().is_direct);
    EXPECT_EQ(read.codecs.size(), machine.codecs.size());
    EXPECT_NEAR(read.software.loss_bytes, machine.software.loss_bytes, 1e-6);
    EXPECT_NEAR(read.device.gemm.half_rows, machine.device.gemm.half_rows, 1e-6);
  }
}

TEST(MachineErrors, RefuseRoundsThatNobodyMakes) {
  std::string text = machine_text(shared_machine(), {});
  const std::string direct = "rounds = \"direct\"";
  ASSERT_NE(text.find(direct), std::string::npos);
  text.replace(text.find(direct), direct.size(), "rounds = \"tree\"");
  try {
    parse_machine(text, "m.toml");
    FAIL() << "rounds of a tree";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("rounds \"tree\" is unknown"), std::string::npos)
        << error.what();
  }
}

TEST(MachineAtWork, HasTheCodecRatesOfAsManyRanks) {
  const Machine machine = shared_machine();
  EXPECT_EQ(machine.at_work(1).codecs[0].encode, 9e9);
  EXPECT_EQ(machine.at_work(2).codecs[0].encode, 4e9);
  EXPECT_EQ(machine.at_work(4).codecs[0].encode, 2e9);
}

TEST(MachineErrors, RefuseSizesOfHeadsThatDoNotAscend) {
  Machine machine = shared_machine();
  machine.software.attention_by_head = {{80, 0.25}, {64, 0.5}};
  try {
    parse_machine(machine_text(machine, {}), "m.toml");
    FAIL() << "sizes that do not ascend";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    EXPECT_NE(
        std::string(error.what()).find("software.attention_by_head has [64, 0.5] out of place"),
        std::string::npos)
        << error.what();
  }
}

TEST(Machine, GivesEveryRankLessWhereSeveralShareIt) {
  const Machine machine = shared_machine();
  const Machine alone = machine.at_work(1), two = machine.at_work(2), four = machine.at_work(4);
  EXPECT_DOUBLE_EQ(alone.device.matrix_f16, 312e12);
  EXPECT_DOUBLE_EQ(two.device.matrix_f16, 200e12);
  EXPECT_DOUBLE_EQ(two.software.fused_attention, 0.25);
  // Not measured: four divide what two had.
  EXPECT_DOUBLE_EQ(four.device.matrix_f16, 100e12);
  EXPECT_DOUBLE_EQ(four.device.memory_bytes_per_s, 450e9);
  // Ranks of other servers share nothing with these.
  EXPECT_DOUBLE_EQ(machine.at_work(16).device.matrix_f16, machine.at_work(8).device.matrix_f16);
  const Machine plain = read_machine(file("a100-800g"));
  EXPECT_DOUBLE_EQ(plain.at_work(64).device.matrix_f16, 312e12);
}

TEST(MachineErrors, RefuseSharedDevicesOutOfOrder) {
  Machine machine = shared_machine();
  machine.shared.push_back(machine.shared.front());
  try {
    parse_machine(machine_text(machine, {}), "m.toml");
    FAIL() << "two entries for two ranks";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    EXPECT_NE(std::string(error.what()).find("shared[1].ranks"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace heddle::planner
