#include "checkpoint/inspect.h"

#include <cmath>
#include <limits>

#include "base/json.h"
#include "checkpoint/convert.h"
#include "faulty_file_system.h"
#include "support.h"
#include "write_checkpoint.h"

namespace heddle {
namespace {

using namespace testing_support;
namespace fs = std::filesystem;

/// A checkpoint with weights a [2, 3] = 1..6 and b [2] = 10, 11.
fs::path save(const fs::path& root, std::int64_t step, float b = 10) {
  Memory memory;
  CheckpointContent content;
  content.step = step;
  content.entries = {whole_entry(kWeightsKind, "a", counting(memory, {2, 3}, 1)),
                     whole_entry(kWeightsKind, "b", counting(memory, {2}, b)),
                     whole_entry("exp_avg", "a", counting(memory, {2, 3}))};
  content.companions = {{"config.json", R"({"model_type":"llama","torch_dtype":"float32"})"}};
  FaultyFileSystem fast;
  return write_checkpoint(fast, root, content);
}

void write_floats(const fs::path& path, const std::string& name, std::vector<float> values) {
  SafetensorsWriter writer(
      real_file_system(), path,
      {tensor_spec(name, DType::f32, {static_cast<std::int64_t>(values.size())})});
  writer.append(name, std::as_bytes(std::span(values)));
  writer.finish();
}

TEST(Inspect, ReportsEveryTensorOfACheckpoint) {
  const TemporaryFolder folder;
  save(folder / "checkpoints", 7);
  const InspectReport report = inspect(folder.path());  // a run folder stands for its newest one
  EXPECT_EQ(report.kind, ModelSource::Kind::checkpoint);
  EXPECT_EQ(report.path.filename(), "step-000007");
  EXPECT_EQ(report.parameters(), 8);
  EXPECT_EQ(report.size_bytes(), 14U * 4);
  ASSERT_EQ(report.weights.size(), 2U);
  const TensorStats& a = *report.weights[0].stats;
  EXPECT_EQ(a.min, 1);
  EXPECT_EQ(a.max, 6);
  EXPECT_EQ(a.mean(), 3.5);
  EXPECT_DOUBLE_EQ(a.rms(), std::sqrt(91.0 / 6));
  EXPECT_EQ(report.optimizer.at(0).spec.name, "exp_avg.a");
  const Json json = parse_json(to_json(report).dump(), "report");
  EXPECT_EQ(json["step"], 7);
  EXPECT_EQ(json["checksums_ok"], true);
  EXPECT_EQ(json["tensors"][0]["shape"], Json({2, 3}));
  EXPECT_NE(to_text(report).find("2 tensors, 8 parameters"), std::string::npos);
}

TEST(Inspect, CountsWhatIsNotFinite) {
  const TemporaryFolder folder;
  const float inf = std::numeric_limits<float>::infinity();
  write_floats(folder / "x.safetensors", "w", {NAN, -inf, 2, -3, inf});
  const InspectReport report = inspect(folder / "x.safetensors");
  const TensorStats& stats = *report.weights.at(0).stats;
  EXPECT_EQ(stats.nan, 1);
  EXPECT_EQ(stats.inf, 2);
  EXPECT_EQ(stats.min, -3);
  EXPECT_EQ(stats.max, 2);
  EXPECT_NE(to_text(report).find("1 NaN, 2 infinite"), std::string::npos);
}

TEST(Inspect, RefusesADamagedCheckpoint) {
  const TemporaryFolder folder;
  const fs::path path = save(folder.path(), 1);
  std::string bytes = read_file(path / "optimizer/exp_avg.safetensors");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file(path / "optimizer/exp_avg.safetensors", bytes);
  expect_error([&] { inspect(path); }, ErrorCode::data,
               "the content of optimizer/exp_avg.safetensors has changed");
}

TEST(Compare, SortsByDifferenceAndNamesWhatIsMissing) {
  const TemporaryFolder folder;
  const fs::path path = save(folder.path(), 1, 10), reference = save(folder.path(), 2, 12);
  const CompareReport report = compare(path, reference);
  ASSERT_EQ(report.tensors.size(), 2U);
  EXPECT_EQ(report.tensors[0].name, "b");
  EXPECT_EQ(report.tensors[0].difference.max_abs, 2);
  EXPECT_DOUBLE_EQ(report.tensors[0].difference.relative, std::sqrt(8.0 / (144 + 169)));
  EXPECT_EQ(report.tensors[1].difference.max_abs, 0);
  EXPECT_FALSE(report.are_equal());
  EXPECT_TRUE(compare(path, path).are_equal());

  write_floats(folder / "x.safetensors", "a", {1, NAN});
  const CompareReport other = compare(folder / "x.safetensors", reference);
  EXPECT_EQ(other.missing, std::vector<std::string>{"b"});
  ASSERT_EQ(other.not_compared.size(), 1U);
  EXPECT_EQ(other.not_compared[0], "a: shape [2] here, [2, 3] in the reference");
  EXPECT_EQ(compare(reference, folder / "x.safetensors").extra, std::vector<std::string>{"b"});
  write_floats(folder / "y.safetensors", "a", {1, 2});
  EXPECT_TRUE(std::isinf(compare(folder / "x.safetensors", folder / "y.safetensors")
                             .tensors.at(0)
                             .difference.max_abs));
  EXPECT_TRUE(compare(folder / "x.safetensors", folder / "x.safetensors").are_equal());
}

TEST(Convert, WritesAFolderInAnotherDtypeAndBack) {
  const TemporaryFolder folder;
  const fs::path path = save(folder.path(), 1);
  FaultyFileSystem fast;
  const ConvertReport report =
      convert(fast, path, folder / "out/bf16/", {.dtype = DType::bf16, .max_shard_bytes = 12});
  EXPECT_EQ(report.tensors, 2);
  EXPECT_EQ(report.parameters, 8);
  EXPECT_TRUE(report.warnings.empty());
  const HfFolder out(folder / "out/bf16");
  EXPECT_EQ(out.entry("a").dtype_name, "BF16");
  EXPECT_EQ(out.files().size(), 2U);
  EXPECT_EQ(read_json_file(folder / "out/bf16/config.json")["torch_dtype"], "bfloat16");
  EXPECT_FALSE(fs::exists(folder / "out/bf16/manifest.json"));
  convert(fast, folder / "out/bf16", folder / "back", {.dtype = DType::f32});
  EXPECT_TRUE(compare(folder / "back", path).are_equal()) << "small integers fit into bf16";
}

TEST(Convert, CopiesWithoutADtypeByteForByte) {
  const TemporaryFolder folder;
  write_file(folder / "in.safetensors",
             safetensors_text(R"({"q":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]},)"
                              R"("new":{"dtype":"X9","shape":[5],"data_offsets":[2,5]},)"
                              R"("i":{"dtype":"I32","shape":[1],"data_offsets":[5,9]}})",
                              "123456789"));
  FaultyFileSystem fast;
  const ConvertReport report =
      convert(fast, folder / "in.safetensors", folder / "out", {.keeps_quantized = true});
  ASSERT_EQ(report.warnings.size(), 1U);
  EXPECT_NE(report.warnings[0].find("tensor \"q\" is F8_E4M3; 2 tensors of this kind were copied"),
            std::string::npos)
      << report.warnings[0];
  const HfFolder out(folder / "out");
  const auto text = [&](const std::string& name) {
    const auto bytes = out.file_of(name).bytes(out.entry(name));
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  EXPECT_EQ(text("q"), "12");
  EXPECT_EQ(text("new"), "345");
  EXPECT_EQ(text("i"), "6789");
}

TEST(Convert, RefusesTypesItCannotReadUnlessTheyAreToBeKept) {
  const TemporaryFolder folder;
  write_file(
      folder / "in.safetensors",
      safetensors_text(R"({"q":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]}})", "12"));
  FaultyFileSystem fast;
  const auto says = [&](const ConvertOptions& options) {
    expect_error([&] { convert(fast, folder / "in.safetensors", folder / "out", options); },
                 ErrorCode::data, "in.safetensors: tensor \"q\" is F8_E4M3, which heddle does not");
    EXPECT_FALSE(fs::exists(folder / "out"));
  };
  says({});
  says({.dtype = DType::f16});
  says({.dtype = DType::f16, .keeps_quantized = true});
}

TEST(Convert, CopiesMasksOfOldExports) {
  const TemporaryFolder folder;
  write_file(folder / "in.safetensors",
             safetensors_text(R"({"m":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})", "12"));
  FaultyFileSystem fast;
  EXPECT_TRUE(convert(fast, folder / "in.safetensors", folder / "out", {}).warnings.empty());
}

TEST(Convert, RefusesAQuantizationConfigUnlessItIsToBeKept) {
  const TemporaryFolder folder;
  const std::string config = R"({"quantization_config":{"quant_method":"awq"},"dtype":"float32"})";
  fs::create_directories(folder / "in");
  write_floats(folder / "in/model.safetensors", "w", {1, 2});
  write_file(folder / "in/config.json", config);
  FaultyFileSystem fast;
  expect_error([&] { convert(fast, folder / "in", folder / "out", {}); }, ErrorCode::data,
               "config.json: its weights are quantized (awq)");
  const ConvertReport report =
      convert(fast, folder / "in", folder / "out", {.keeps_quantized = true});
  EXPECT_EQ(report.warnings.size(), 1U);
  EXPECT_EQ(read_file(folder / "out/config.json"), config);
  EXPECT_EQ(inspect(folder / "in").quantization, "awq");
  EXPECT_NE(to_text(inspect(folder / "in")).find("quantized: awq"), std::string::npos);
}

TEST(Convert, WithoutADtypeSaysTheOneOfTheFiles) {
  const TemporaryFolder folder;
  fs::create_directories(folder / "in");
  write_floats(folder / "in/model.safetensors", "w", {1, 2});
  write_file(folder / "in/config.json", R"({"dtype":"bfloat16","torch_dtype":"bfloat16"})");
  FaultyFileSystem fast;
  convert(fast, folder / "in", folder / "out", {});
  EXPECT_EQ(read_json_file(folder / "out/config.json"),
            (Json{{"dtype", "float32"}, {"torch_dtype", "float32"}}));
}

TEST(Convert, WarnsOfWhatIsNotFiniteOrDoesNotFit) {
  const TemporaryFolder folder;
  write_floats(folder / "in.safetensors", "w", {NAN, 1e6F, 1});
  FaultyFileSystem fast;
  const ConvertReport report =
      convert(fast, folder / "in.safetensors", folder / "out", {.dtype = DType::f16});
  EXPECT_EQ(report.warnings,
            (std::vector<std::string>{"tensor \"w\" has 1 NaN and 0 infinite elements",
                                      "1 elements of tensor \"w\" are too large for f16"}));
}

TEST(Convert, LeavesNothingWhenItFailsAndNeverOverwrites) {
  const TemporaryFolder folder;
  const fs::path path = save(folder / "checkpoints", 1);
  FaultyFileSystem full;
  full.fill_disk_after(100);
  expect_error([&] { convert(full, path, folder / "out", {}); }, ErrorCode::resources, "no space");
  FaultyFileSystem small;
  small.report_free_bytes(10);
  expect_error([&] { convert(small, path, folder / "out", {}); }, ErrorCode::resources,
               "only 10 B are free");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 1);
  fs::create_directories(folder / "out");
  FaultyFileSystem fast;
  convert(fast, path, folder / "out", {});
  expect_error([&] { convert(fast, path, folder / "out", {}); }, ErrorCode::usage,
               "is not an empty folder");
}

}  // namespace
}  // namespace heddle
