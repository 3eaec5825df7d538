#include <gtest/gtest.h>

#include "base/json.h"
#include "base/log.h"
#include "checkpoint/catalog.h"
#include "checkpoint/element_copy.h"
#include "checkpoint/hf_folder.h"
#include "checkpoint/reader.h"
#include "checkpoint/retention.h"
#include "faulty_file_system.h"
#include "support.h"
#include "write_checkpoint.h"

namespace heddle {
namespace {

using namespace testing_support;
namespace fs = std::filesystem;

CheckpointContent small_content(Memory& memory, std::int64_t step) {
  CheckpointContent content;
  content.step = step;
  content.tokens = 4096 * step;
  content.mesh = "dp1";
  content.entries = {
      whole_entry(kWeightsKind, "w", counting(memory, {3, 4}, static_cast<float>(step))),
      whole_entry("exp_avg", "w", counting(memory, {3, 4}, 1)),
      whole_entry("exp_avg_sq", "w", counting(memory, {3, 4}, 2))};
  content.companions = {{"config.json", R"({"model_type":"llama"})"},
                        {"additional_chat_templates/tool_use.jinja", "{{ tools }}"}};
  Json trainer = Json::object();
  trainer["cursor"] = 77;
  trainer["lr"] = 0.1;
  content.trainer = std::make_shared<const Json>(std::move(trainer));
  return content;
}

fs::path save(const fs::path& root, std::int64_t step, std::optional<double> eval_loss = {}) {
  Memory memory;
  CheckpointContent content = small_content(memory, step);
  content.eval_loss = eval_loss;
  FaultyFileSystem fast;
  return write_checkpoint(fast, root, content);
}

std::vector<std::int64_t> steps(const fs::path& root) {
  std::vector<std::int64_t> found;
  for (const auto& folder : list_checkpoints(root)) found.push_back(folder.step);
  return found;
}

TEST(Checkpoint, ReadsBackWhatWasWritten) {
  const TemporaryFolder folder;
  Memory memory;
  const CheckpointContent content = small_content(memory, 400);
  const fs::path path = write_checkpoint(real_file_system(), folder / "checkpoints", content);
  EXPECT_EQ(path.filename(), "step-000400");

  const CheckpointReader reader(path);
  EXPECT_EQ(reader.manifest().step, 400);
  EXPECT_EQ(reader.manifest().tokens, 4096 * 400);
  EXPECT_EQ(reader.manifest().mesh, "dp1");
  EXPECT_FALSE(reader.manifest().eval_loss);
  EXPECT_EQ((*reader.manifest().trainer)["cursor"], 77);
  EXPECT_EQ((*reader.manifest().trainer)["lr"].get<double>(), 0.1);
  const Tensor out = memory.alloc({3, 4}, DType::f32, MemoryTag::data);
  reader.weights().read("w", out);
  EXPECT_EQ(std::memcmp(out.bytes(), content.entries[0].data.bytes(), out.size_bytes()), 0);
  reader.optimizer().read("exp_avg_sq.w", out);
  EXPECT_EQ(std::memcmp(out.bytes(), content.entries[2].data.bytes(), out.size_bytes()), 0);
  expect_error([&] { reader.weights().read("v", out); }, ErrorCode::data, "no tensor \"v\"");
}

TEST(Checkpoint, OpensAsAHuggingFaceFolder) {
  const TemporaryFolder folder;
  const fs::path path = save(folder.path(), 1);
  const HfFolder hf(path);
  EXPECT_EQ(std::vector<std::string>(hf.names().begin(), hf.names().end()),
            std::vector<std::string>{"w"});
  EXPECT_EQ(hf.entry("w").dtype_name, "F32");
  const auto companions = read_companions(path);
  ASSERT_EQ(companions.size(), 2U);
  EXPECT_EQ(companions[1].name, "additional_chat_templates/tool_use.jinja");
  EXPECT_EQ(companions[1].content, "{{ tools }}");
  EXPECT_TRUE(fs::exists(path / "optimizer" / "exp_avg.safetensors"));
  EXPECT_TRUE(fs::exists(path / "optimizer" / "exp_avg_sq.safetensors"));
}

/// A contiguous copy of a box of `whole`.
Entry box_entry(Memory& memory, const std::string& kind, const Tensor& whole, const Shape& begin,
                const Shape& extent) {
  const Tensor data = memory.alloc(extent, whole.dtype(), MemoryTag::data);
  const std::vector<std::int64_t> origin(static_cast<std::size_t>(extent.dims()), 0);
  copy_box(whole.bytes(), whole.dtype(), whole.shape(), begin.sizes(), data, origin,
           extent.sizes());
  return {kind, "w", whole.shape(), begin, data};
}

TEST(Checkpoint, BoxesOfManyWritersMakeTheFileThatOneWouldWrite) {
  const TemporaryFolder folder;
  Memory memory;
  const Tensor matrix = counting(memory, {6, 8}), cube = counting(memory, {4, 3, 5}, 100);
  CheckpointContent one, many;
  one.entries = {whole_entry(kWeightsKind, "w", matrix), whole_entry("exp_avg", "w", cube)};
  // Rows 0-4 in two column halves, rows 4-6 whole; a cube in boxes that no dimension has whole.
  many.entries = {box_entry(memory, kWeightsKind, matrix, {0, 0}, {4, 3}),
                  box_entry(memory, kWeightsKind, matrix, {0, 3}, {4, 5}),
                  box_entry(memory, kWeightsKind, matrix, {4, 0}, {2, 8}),
                  box_entry(memory, "exp_avg", cube, {0, 0, 0}, {2, 3, 5}),
                  box_entry(memory, "exp_avg", cube, {2, 0, 0}, {2, 2, 4}),
                  box_entry(memory, "exp_avg", cube, {2, 0, 4}, {2, 2, 1}),
                  box_entry(memory, "exp_avg", cube, {2, 2, 0}, {2, 1, 5})};
  many.writers = 3;
  const fs::path a = write_checkpoint(real_file_system(), folder / "one", one);
  const fs::path b = write_checkpoint(real_file_system(), folder / "many", many);
  for (const char* file : {"model.safetensors", "optimizer/exp_avg.safetensors"}) {
    EXPECT_EQ(read_file(a / file), read_file(b / file)) << file;
  }
  EXPECT_NO_THROW(CheckpointReader reader(b)) << "checksums of parts";
}

TEST(Checkpoint, IsNotCommittedWhenWritersLeaveHolesOrOverlap) {
  const TemporaryFolder folder;
  Memory memory;
  const Tensor whole = counting(memory, {6});
  CheckpointContent content;
  content.entries = {box_entry(memory, kWeightsKind, whole, {0}, {2}),
                     box_entry(memory, kWeightsKind, whole, {4}, {2})};
  expect_error([&] { write_checkpoint(real_file_system(), folder.path(), content); },
               ErrorCode::data, "the parts of model.safetensors have");
  content.entries = {box_entry(memory, kWeightsKind, whole, {0}, {3}),
                     box_entry(memory, kWeightsKind, whole, {2}, {4})};
  expect_error([&] { write_checkpoint(real_file_system(), folder.path(), content); },
               ErrorCode::data, "the parts of model.safetensors have");
  EXPECT_TRUE(list_checkpoints(folder.path()).empty());
  EXPECT_TRUE(list_leftovers(folder.path()).empty());
}

/// A file that keeps boxes under keys of their own.
std::shared_ptr<const SafetensorsFile> sliced_file(const fs::path& path,
                                                   const std::vector<Entry>& boxes) {
  std::vector<TensorSpec> specs;
  std::map<std::string, std::string> metadata;
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    const Entry& box = boxes[i];
    const std::string key = fmt::format("{}[{}]", box.name, i);
    specs.push_back(tensor_spec(key, box.data.dtype(), box.data.shape()));
    const Json note = {
        {"name", box.name}, {"shape", box.whole.sizes()}, {"begin", box.begin.sizes()}};
    metadata["slice:" + key] = note.dump();
  }
  SafetensorsWriter writer(real_file_system(), path, specs, metadata);
  for (std::size_t i = 0; i < boxes.size(); ++i) writer.append(specs[i].name, boxes[i].data);
  writer.finish();
  return std::make_shared<const SafetensorsFile>(path);
}

TEST(StoredTensors, JoinsSlicesOfAnyOriginIntoAnySlice) {
  const TemporaryFolder folder;
  Memory memory;
  const Tensor whole = counting(memory, {6, 8});
  const auto file = sliced_file(folder / "slices.safetensors",
                                {box_entry(memory, kWeightsKind, whole, {0, 0}, {4, 3}),
                                 box_entry(memory, kWeightsKind, whole, {0, 3}, {4, 5}),
                                 box_entry(memory, kWeightsKind, whole, {4, 0}, {2, 8})});
  const StoredTensors tensors(std::vector{file});
  ASSERT_EQ(tensors.names().size(), 1U);
  EXPECT_EQ(tensors.shape("w"), whole.shape());
  for (std::int64_t r = 0; r < 6; ++r) {
    for (std::int64_t c = 0; c < 8; ++c) {
      const std::array<std::int64_t, 2> begin = {r / 2, c / 2}, end = {r + 1, c + 1};
      const Tensor out =
          memory.alloc({end[0] - begin[0], end[1] - begin[1]}, DType::f32, MemoryTag::data);
      tensors.read_slice("w", begin, end, out);
      EXPECT_EQ(out.host<float>().front(), static_cast<float>(begin[0] * 8 + begin[1]));
      EXPECT_EQ(out.host<float>().back(), static_cast<float>(r * 8 + c));
    }
  }
}

TEST(StoredTensors, RefusesSlicesThatOverlapOrLeaveHoles) {
  const TemporaryFolder folder;
  Memory memory;
  const Tensor whole = counting(memory, {6});
  const auto file = [&](const char* name, const Shape& begin, const Shape& extent) {
    return sliced_file(folder / name, {box_entry(memory, kWeightsKind, whole, {0}, {3}),
                                       box_entry(memory, kWeightsKind, whole, begin, extent)});
  };
  const StoredTensors holes(std::vector{file("holes", {4}, {2})});
  expect_error([&] { holes.read("w", whole); }, ErrorCode::data,
               "1 of 6 elements asked of tensor \"w\" are not stored");
  expect_error([&] { holes.content("w", memory); }, ErrorCode::data,
               "1 of 6 elements asked of tensor \"w\" are not stored");
  const auto overlap = file("overlap", {2}, {4});
  expect_error([&] { StoredTensors tensors(std::vector{overlap}); }, ErrorCode::data,
               "a part of tensor \"w\" is also in");
}

TEST(StoredTensors, RefusesSlicesOfWhatCannotBe) {
  const TemporaryFolder folder;
  Memory memory;
  const std::int64_t large = std::int64_t{1} << 60;
  Entry box = box_entry(memory, kWeightsKind, counting(memory, {6, 8}), {0, 0}, {4, 3});
  for (const Shape& whole : {Shape{large, large}, Shape{large, 16}, Shape{large, 8}}) {
    box.whole = whole;
    const auto file = sliced_file(folder / "file", {box});
    expect_error([&] { StoredTensors tensors(std::vector{file}); }, ErrorCode::data,
                 "is too large to be true");
  }
  box.whole = {large / 1024, 8};
  const StoredTensors tensors(std::vector{sliced_file(folder / "file", {box})});
  expect_error([&] { tensors.content("w", memory); }, ErrorCode::data,
               "elements asked of tensor \"w\" are not stored");
}

TEST(Checkpoint, TheLatestIsTheNewestWholeOne) {
  const TemporaryFolder folder;
  EXPECT_EQ(find_latest(folder / "none"), std::nullopt);
  EXPECT_EQ(find_latest(folder.path()), std::nullopt);
  save(folder.path(), 350);
  const fs::path newest = save(folder.path(), 400);
  fs::create_directories(folder / "step-000500.tmp-1");
  fs::create_directories(folder / "step-x");
  EXPECT_EQ(find_latest(folder.path()), newest);

  fs::remove(newest / "COMMIT");
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(find_latest(folder.path()), folder / "step-000350");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "warning: checkpoint step-000400 is incomplete (COMMIT is missing); "
            "using step-000350\n");
  fs::remove(folder / "step-000350/model.safetensors");
  expect_error([&] { find_latest(folder.path()); }, ErrorCode::data,
               "step-000350 is incomplete (model.safetensors is missing)");
}

TEST(Checkpoint, StepsBeyondSixDigitsAreOrderedAsNumbers) {
  const TemporaryFolder folder;
  save(folder.path(), 999999);
  save(folder.path(), 1000000);
  EXPECT_EQ(find_latest(folder.path()), folder / "step-1000000");
}

TEST(Checkpoint, AChangedByteAnywhereIsFoundAndTheOlderOneUsed) {
  const TemporaryFolder folder;
  save(folder.path(), 1);
  const fs::path newest = save(folder.path(), 2);
  set_log_level(LogLevel::error);
  int files = 0;
  for (const auto& item : fs::recursive_directory_iterator(newest)) {
    if (!item.is_regular_file()) continue;
    ++files;
    const std::string good = read_file(item.path());
    for (std::size_t at = 0; at < good.size(); at += 7) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ 0x10);
      write_file(item.path(), bad);
      const auto latest = open_latest(folder.path());
      ASSERT_TRUE(latest && latest->manifest().step == 1) << item.path() << " at " << at;
      expect_error([&] { CheckpointReader reader(newest); }, ErrorCode::data, "is incomplete");
    }
    write_file(item.path(), good.substr(0, good.size() - 1));
    EXPECT_EQ(find_latest(folder.path()), folder / "step-000001") << item.path();
    write_file(item.path(), good);
  }
  set_log_level(LogLevel::info);
  EXPECT_EQ(files, 7);
  EXPECT_EQ(open_latest(folder.path())->manifest().step, 2);
}

TEST(Checkpoint, OfTheFirstFormatIsStillRead) {
  const TemporaryFolder folder;
  const fs::path path = save(folder.path(), 1);
  Json manifest = read_json_file(path / "manifest.json");
  manifest["version"] = 1;
  for (Json& file : manifest["files"]) {
    const std::string content = read_file(path / file["path"].get<std::string>());
    file.erase("parts");
    file["xxh64"] = checksum_text(checksum_of(std::as_bytes(std::span(content))));
  }
  const std::string text = manifest.dump();
  write_file(path / "manifest.json", text);
  write_file(path / "COMMIT", commit_text(text));
  EXPECT_EQ(CheckpointReader(path).manifest().step, 1);
}

TEST(Checkpoint, AManifestOfANewerFormatIsRefusedByVersion) {
  const TemporaryFolder folder;
  const fs::path path = save(folder.path(), 1);
  Json manifest = read_json_file(path / "manifest.json");
  const auto rewrite = [&] {
    const std::string text = manifest.dump();
    write_file(path / "manifest.json", text);
    write_file(path / "COMMIT", commit_text(text));
    return [&] { CheckpointReader reader(path); };
  };
  manifest["version"] = 3;
  expect_error(rewrite(), ErrorCode::data, "format version 3 is not known");
  manifest["version"] = 2;
  EXPECT_NO_THROW(rewrite()());
  manifest["files"][0]["path"] = "../step-000002/model.safetensors";
  expect_error(rewrite(), ErrorCode::data, "lies outside the folder");
  manifest["files"][0]["path"] = "model.safetensors";
  const Json parts = manifest["files"][0]["parts"];
  for (const auto& [part, why] : {std::pair("0 8 1 0", "is no part of a file"),
                                  std::pair("0 8 1 0 12", "is not 16 hexadecimal digits"),
                                  std::pair("0 99999 1 0 0123456789abcdef", "lies outside it"),
                                  std::pair("0 8 3 4 0123456789abcdef", "lies outside it"),
                                  std::pair("0 8 1 0 0123456789abcdef", "bytes, but it has")}) {
    manifest["files"][0]["parts"][0] = part;
    expect_error(rewrite(), ErrorCode::data, why);
  }
  manifest["files"][0]["parts"] = parts;
  manifest["files"] = 3;
  expect_error(rewrite(), ErrorCode::data, "\"files\" is not an array");
  manifest.erase("files");
  expect_error(rewrite(), ErrorCode::data, "\"files\" is missing");
  manifest["step"] = -1;
  expect_error(rewrite(), ErrorCode::data, "\"step\" is not a whole number");
  manifest = Json::array();
  expect_error(rewrite(), ErrorCode::data, "not the manifest of a checkpoint");
}

TEST(Retention, KeepsTheLastTheMilestonesAndTheBest) {
  const TemporaryFolder folder;
  save(folder.path(), 100, 3.0);
  save(folder.path(), 150, 1.5);
  save(folder.path(), 200, 2.0);
  save(folder.path(), 250);
  save(folder.path(), 300, 2.5);
  apply_retention(real_file_system(), folder.path(), {.keep_last = 2, .keep_every = 200});
  EXPECT_EQ(steps(folder.path()), (std::vector<std::int64_t>{300, 250, 200, 150}));
  apply_retention(real_file_system(), folder.path(),
                  {.keep_last = 1, .keep_every = 0, .keep_best = false});
  EXPECT_EQ(steps(folder.path()), std::vector<std::int64_t>{300});
  apply_retention(real_file_system(), folder.path(), {.keep_last = 0, .keep_best = false});
  EXPECT_EQ(steps(folder.path()), std::vector<std::int64_t>{300}) << "the only one stays";
}

TEST(Retention, LeavesStepsThatARunHasLeftAgainAndKeepsOneThatIsAskedFor) {
  const TemporaryFolder folder;
  for (const std::int64_t step : {10, 20, 30, 40}) save(folder.path(), step, 9.0 - step / 10);
  // The run went back to step 20, and has just saved step 30 again.
  apply_retention(real_file_system(), folder.path(),
                  {.keep_last = 1, .keep_best = true, .keep_step = 20, .run_step = 30});
  EXPECT_EQ(steps(folder.path()), (std::vector<std::int64_t>{30, 20}));
}

TEST(Retention, ABrokenNewestOneProtectsTheWholeOneBelowIt) {
  const TemporaryFolder folder;
  save(folder.path(), 1);
  save(folder.path(), 2);
  const fs::path broken = save(folder.path(), 3);
  fs::remove(broken / "COMMIT");
  apply_retention(real_file_system(), folder.path(), {.keep_last = 1});
  EXPECT_EQ(steps(folder.path()), (std::vector<std::int64_t>{3, 2}));
  save(folder.path(), 4);
  apply_retention(real_file_system(), folder.path(), {.keep_last = 1});
  EXPECT_EQ(steps(folder.path()), std::vector<std::int64_t>{4});
}

}  // namespace
}  // namespace heddle
