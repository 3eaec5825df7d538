#include <gtest/gtest.h>

#include "base/json.h"
#include "base/log.h"
#include "checkpoint/catalog.h"
#include "checkpoint/hf_folder.h"
#include "checkpoint/reader.h"
#include "checkpoint/retention.h"
#include "checkpoint/writer.h"
#include "faulty_file_system.h"
#include "support.h"

namespace heddle {
namespace {

using namespace testing_support;
namespace fs = std::filesystem;

CheckpointContent small_content(Memory& memory, std::int64_t step) {
  CheckpointContent content;
  content.step = step;
  content.tokens = 4096 * step;
  content.mesh = "dp1";
  content.weights = {whole_entry("w", counting(memory, {3, 4}, static_cast<float>(step)))};
  content.optimizer = {whole_entry("exp_avg.w", counting(memory, {3, 4}, 1)),
                       whole_entry("exp_avg_sq.w", counting(memory, {3, 4}, 2))};
  content.companions = {{"config.json", R"({"model_type":"llama"})"}};
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
  EXPECT_EQ(std::memcmp(out.bytes(), content.weights[0].data.bytes(), out.size_bytes()), 0);
  reader.optimizer().read("exp_avg_sq.w", out);
  EXPECT_EQ(std::memcmp(out.bytes(), content.optimizer[1].data.bytes(), out.size_bytes()), 0);
  expect_error([&] { reader.weights().read("v", out); }, ErrorCode::data, "no tensor \"v\"");
}

TEST(Checkpoint, OpensAsAHuggingFaceFolder) {
  const TemporaryFolder folder;
  const fs::path path = save(folder.path(), 1);
  const HfFolder hf(path);
  EXPECT_EQ(std::vector<std::string>(hf.names().begin(), hf.names().end()),
            std::vector<std::string>{"w"});
  EXPECT_EQ(hf.entry("w").dtype_name, "F32");
  EXPECT_EQ(read_companions(path).size(), 1U);
  EXPECT_TRUE(fs::exists(path / "optimizer" / "exp_avg.safetensors"));
  EXPECT_TRUE(fs::exists(path / "optimizer" / "exp_avg_sq.safetensors"));
}

TEST(Checkpoint, JoinsSlicesOfAnyOriginIntoAnySlice) {
  const TemporaryFolder folder;
  Memory memory;
  const Tensor whole = counting(memory, {6, 8});
  // Rows 0-4 in two column halves, rows 4-6 whole: three boxes of one tensor.
  const auto box = [&](std::int64_t r0, std::int64_t r1, std::int64_t c0, std::int64_t c1) {
    return SliceEntry{
        "w", whole.shape(), {r0, c0}, {r1, c1}, whole.slice(0, r0, r1).slice(1, c0, c1)};
  };
  CheckpointContent content;
  content.optimizer = {box(0, 4, 0, 3), box(0, 4, 3, 8), box(4, 6, 0, 8)};
  content.weights = {box(0, 3, 0, 8), box(3, 6, 0, 8)};
  const CheckpointReader reader(write_checkpoint(real_file_system(), folder.path(), content));
  for (const auto* tensors : {&reader.weights(), &reader.optimizer()}) {
    ASSERT_EQ(tensors->names().size(), 1U);
    EXPECT_EQ(tensors->shape("w"), whole.shape());
    for (std::int64_t r = 0; r < 6; ++r) {
      for (std::int64_t c = 0; c < 8; ++c) {
        const std::array<std::int64_t, 2> begin = {r / 2, c / 2}, end = {r + 1, c + 1};
        const Tensor out =
            memory.alloc({end[0] - begin[0], end[1] - begin[1]}, DType::f32, MemoryTag::data);
        tensors->read_slice("w", begin, end, out);
        EXPECT_EQ(out.host<float>().front(), static_cast<float>(begin[0] * 8 + begin[1]));
        EXPECT_EQ(out.host<float>().back(), static_cast<float>(r * 8 + c));
      }
    }
  }
}

TEST(Checkpoint, RefusesSlicesThatOverlapOrLeaveHoles) {
  const TemporaryFolder folder;
  Memory memory;
  const Tensor whole = counting(memory, {6});
  const auto box = [&](std::int64_t begin, std::int64_t end) {
    return SliceEntry{"w", whole.shape(), {begin}, {end}, whole.slice(0, begin, end)};
  };
  CheckpointContent content;
  content.weights = {box(0, 2), box(4, 6)};
  const CheckpointReader holes(write_checkpoint(real_file_system(), folder / "a", content));
  expect_error([&] { holes.weights().read("w", whole); }, ErrorCode::data,
               "2 of 6 elements asked of tensor \"w\" are not stored");
  content.weights = {box(0, 3), box(2, 6)};
  const fs::path overlap = write_checkpoint(real_file_system(), folder / "b", content);
  expect_error([&] { CheckpointReader reader(overlap); }, ErrorCode::data,
               "a part of tensor \"w\" is also in");
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
  EXPECT_EQ(files, 6);
  EXPECT_EQ(open_latest(folder.path())->manifest().step, 2);
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
  manifest["version"] = 2;
  expect_error(rewrite(), ErrorCode::data, "format version 2 is not known");
  manifest["version"] = 1;
  EXPECT_NO_THROW(rewrite()());
  manifest["files"][0]["path"] = "../step-000002/model.safetensors";
  expect_error(rewrite(), ErrorCode::data, "lies outside the folder");
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
