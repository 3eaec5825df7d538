#include "planner/machine.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "base/file_system.h"
#include "support/source_dir.h"

namespace heddle::planner {
namespace {

std::string file(const std::string& name) {
  return source_dir() + "/configs/systems/" + name + ".toml";
}

/// The shipped A100 file with one piece of text replaced.
std::string edited(const std::string& what, const std::string& by) {
  std::string text = read_text_file(file("a100-800g"));
  const auto at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), by);
}

/// What the reader says about a text.
std::string refusal(const std::string& text) {
  try {
    parse_machine(text, "m.toml");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::usage);
    return error.what();
  }
  return "nothing";
}

void expect_refused(const std::string& text, const std::vector<std::string>& mentions) {
  const std::string said = refusal(text);
  for (const std::string& word : mentions) {
    EXPECT_NE(said.find(word), std::string::npos) << "\"" << said << "\" lacks " << word;
  }
}

TEST(Machine, ReadsWhatIsShippedInUnitsOfSecondsAndBytes) {
  const Machine a100 = read_machine(file("a100-800g"));
  EXPECT_EQ(a100.server_size(), 8);
  EXPECT_EQ(a100.device.processors, 108);
  EXPECT_DOUBLE_EQ(a100.device.matrix_rate(DType::f16), 312e12);
  EXPECT_DOUBLE_EQ(a100.device.memory_bytes, 80.0 * 1024 * 1024 * 1024);
  EXPECT_DOUBLE_EQ(a100.links.back().bytes_per_s, 12.5e9);
  EXPECT_DOUBLE_EQ(a100.links.back().latency_s, 20e-6);
  ASSERT_EQ(a100.collectives.size(), 3u);
  EXPECT_DOUBLE_EQ(a100.collectives.back().points.back()[1], 8196e-6);
  EXPECT_EQ(read_machine(file("a100-dgx-hdr")).links.size(), 2u);
  EXPECT_EQ(read_machine(file("h200-hgx-ndr")).device.processors, 132);
}

TEST(MachineErrors, NameWhatIsMissing) {
  expect_refused("", {"m.toml", "name", "missing"});
  expect_refused(edited("memory_gib = 80", ""), {"device.memory_gib", "missing", "GiB"});
  expect_refused(edited("[device.gemm]", "[device.gemms]"), {"gemm", "missing"});
  const std::string text = read_text_file(file("a100-800g"));
  std::string without;  // any link
  for (std::size_t at = 0; at < text.size();) {
    const auto end = std::min(text.size(), text.find("\n[", at + 1));
    if (text.compare(at, 10, "\n[[link]]\n") != 0) without += text.substr(at, end - at);
    at = end;
  }
  expect_refused(without, {"[[link]]", "missing", "tiers"});
  expect_refused(edited("[[link]]\nname = \"infiniband\"", "[[link]]\nreach = 64\nname = \"x\""),
                 {"link[1].reach", "64", "no tier reaches further"});
}

TEST(MachineErrors, RefuseNumbersThatCannotBe) {
  expect_refused(edited("gb_per_s = 12.5", "gb_per_s = 0"),
                 {"link[1].gb_per_s", "= 0", "not positive", "GB/s"});
  expect_refused(edited("gb_per_s = 12.5", "gb_per_s = -3"), {"gb_per_s", "not positive"});
  // Bytes per second where GB/s are meant, FLOP/s where TFLOP/s are, percent for a fraction.
  expect_refused(edited("gb_per_s = 300", "gb_per_s = 3e11"), {"link[0].gb_per_s", "GB/s"});
  expect_refused(edited("f16 = 312", "f16 = 312e12"), {"matrix_tflops.f16", "TFLOP/s"});
  expect_refused(edited("memory_gib = 80", "memory_gib = 85899345920"), {"memory_gib", "GiB"});
  expect_refused(edited("efficiency = 0.816", "efficiency = 81.6"),
                 {"gemm.efficiency", "fraction"});
  expect_refused(edited("gb_per_s = 12.5", "gb_per_s = \"12.5 GB/s\""), {"gb_per_s", "number"});
  expect_refused(edited("gb_per_s = 12.5", "gb_per_s = nan"), {"gb_per_s", "number"});
}

TEST(MachineErrors, NameTheNearestKey) {
  expect_refused(edited("latency_us = 20", "latency_ms = 20"), {"latency_us", "missing"});
  expect_refused(edited("kernel_us = 10", "kernel_uss = 10"),
                 {"device.kernel_uss", "not a key", "kernel_us"});
}

TEST(MachineErrors, OfTablesSayWhichEntry) {
  expect_refused(edited("operation = \"all_reduce\"", "operation = \"reduce\""),
                 {"collective[0].operation", "reduce", "all_gather"});
  expect_refused(edited("[[1, 45], [4, 60]", "[[4, 45], [1, 60]"), {"mib_us", "ascending"});
  expect_refused(edited("[[1, 45], [4, 60]", "[[1, 45, 2], [4, 60]"), {"mib_us", "2 numbers"});
  expect_refused(edited("[software]", "[pairs]\ngb_per_s = [[1, 2], [3]]\n[software]"),
                 {"pairs.gb_per_s", "row 1", "1 numbers"});
  expect_refused(edited("[software]", "[pairs]\ngb_per_s = [[1, 0], [3, 1]]\n[software]"),
                 {"pairs.gb_per_s", "0", "row 0"});
  expect_refused("name = [[[", {"m.toml:1", "TOML"});
}

}  // namespace
}  // namespace heddle::planner
