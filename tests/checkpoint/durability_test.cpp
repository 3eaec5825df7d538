// A save may stop at any call: there is always a whole checkpoint afterwards.
#include <gtest/gtest.h>

#include "base/json.h"
#include "base/log.h"
#include "checkpoint/catalog.h"
#include "checkpoint/reader.h"
#include "checkpoint/retention.h"
#include "faulty_file_system.h"
#include "support.h"
#include "write_checkpoint.h"

namespace heddle {
namespace {

using namespace testing_support;

/// A checkpoint whose every value tells `mark`.
CheckpointContent content_of(Memory& memory, std::int64_t step, float mark) {
  CheckpointContent content;
  content.step = step;
  content.tokens = step * 10;
  content.entries = {whole_entry(kWeightsKind, "a", counting(memory, {4, 3}, mark)),
                     whole_entry(kWeightsKind, "b", counting(memory, {5}, mark)),
                     whole_entry("exp_avg", "a", counting(memory, {4, 3}, mark)),
                     whole_entry("exp_avg_sq", "a", counting(memory, {4, 3}, mark))};
  content.companions = {{"config.json", "{}\n"}, {"additional_chat_templates/tool_use.jinja", "5"}};
  content.max_shard_bytes = 50;
  Json trainer = Json::object();
  trainer["mark"] = mark;
  content.trainer = std::make_shared<const Json>(std::move(trainer));
  return content;
}

/// The mark of the newest checkpoint, after reading all of it; 0 when there is none.
float newest_mark(const std::filesystem::path& root) {
  const auto reader = open_latest(root);
  if (!reader) return 0;
  EXPECT_EQ(read_companions(reader->path()).size(), 2u);
  const float mark = (*reader->manifest().trainer)["mark"].get<float>();
  Memory memory;
  for (const auto* tensors : {&reader->weights(), &reader->optimizer()}) {
    for (const std::string& name : tensors->names()) {
      const Tensor out = memory.alloc(tensors->shape(name), DType::f32, MemoryTag::data);
      tensors->read(name, out);
      EXPECT_EQ(out.data<float>()[0], mark) << name;
    }
  }
  return mark;
}

struct Scenario {
  std::vector<std::int64_t> before;  // steps saved in peace; their marks are 1, 2, ...
  std::int64_t step;                 // then this one, with mark 100
};

void kill_everywhere(const Scenario& scenario, Loss loss) {
  Memory memory;
  for (int call = 1;; ++call) {
    const TemporaryFolder folder;
    const auto root = folder / "checkpoints";
    float mark = 0;
    FaultyFileSystem peaceful;
    for (const std::int64_t step : scenario.before) {
      write_checkpoint(peaceful, root, content_of(memory, step, ++mark));
    }
    FaultyFileSystem faulty;
    faulty.kill_at(call);
    bool is_saved = false, is_done = false;
    try {
      write_checkpoint(faulty, root, content_of(memory, scenario.step, 100));
      is_saved = true;
      apply_retention(faulty, root, {.keep_last = 1});
      is_done = true;
    } catch (const Killed&) {
    }
    faulty.crash(loss);
    const float found = newest_mark(root);
    if (is_saved) {
      EXPECT_EQ(found, 100) << "call " << call;
    } else {
      EXPECT_TRUE(found == mark || found == 100) << "found " << found << " after call " << call;
    }
    if (is_done) {
      EXPECT_GT(call, 30) << "the scenario is too short to mean anything";
      EXPECT_EQ(list_checkpoints(root).size(), 1U);
      return;
    }
    // The next life goes on and leaves nothing behind.
    write_checkpoint(peaceful, root, content_of(memory, scenario.step + 1, 200));
    EXPECT_EQ(newest_mark(root), 200);
    EXPECT_TRUE(list_leftovers(root).empty());
    for (const auto& checkpoint : list_checkpoints(root)) EXPECT_FALSE(checkpoint.is_replaced);
    if (::testing::Test::HasFailure()) return;
  }
}

class KilledSave : public ::testing::TestWithParam<Loss> {
  void SetUp() override { set_log_level(LogLevel::error); }
  void TearDown() override { set_log_level(LogLevel::info); }
};

TEST_P(KilledSave, OfTheFirstCheckpointLeavesNoneOrAWholeOne) {
  kill_everywhere({.before = {}, .step = 1}, GetParam());
}
TEST_P(KilledSave, OfALaterCheckpointLeavesTheOldOrTheNewOne) {
  kill_everywhere({.before = {1, 2}, .step = 3}, GetParam());
}
TEST_P(KilledSave, OfTheSameStepAgainLeavesTheOldOrTheNewOne) {
  kill_everywhere({.before = {1}, .step = 1}, GetParam());
}

INSTANTIATE_TEST_SUITE_P(Checkpoint, KilledSave,
                         ::testing::Values(Loss::nothing, Loss::unsynced_data,
                                           Loss::unsynced_anything),
                         [](const auto& test) {
                           return test.param == Loss::nothing         ? "LosingNothing"
                                  : test.param == Loss::unsynced_data ? "LosingData"
                                                                      : "LosingAnything";
                         });

TEST(CheckpointDurability, AFullDiskAtAnyByteIsReportedAndLosesNothing) {
  Memory memory;
  const TemporaryFolder folder;
  write_checkpoint(real_file_system(), folder.path(), content_of(memory, 1, 1));
  bool fits = false;
  for (std::uint64_t bytes = 0; !fits; bytes += 53) {
    FaultyFileSystem faulty;
    faulty.fill_disk_after(bytes);
    try {
      write_checkpoint(faulty, folder.path(), content_of(memory, 2, 2));
      fits = true;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::resources);
      EXPECT_TRUE(list_leftovers(folder.path()).empty()) << "the space is given back";
    }
    EXPECT_EQ(newest_mark(folder.path()), fits ? 2 : 1);
  }
}

TEST(CheckpointDurability, TooLittleFreeSpaceIsFoundBeforeWriting) {
  Memory memory;
  const TemporaryFolder folder;
  FaultyFileSystem faulty;
  faulty.report_free_bytes(1000);
  faulty.fill_disk_after(0);
  expect_error([&] { write_checkpoint(faulty, folder.path(), content_of(memory, 1, 1)); },
               ErrorCode::resources, "but only 1000 B are free");
}

TEST(CheckpointDurability, AFolderThatMayNotBeWrittenIsNamed) {
  Memory memory;
  if (!std::filesystem::is_directory("/sys/kernel")) GTEST_SKIP() << "no /sys here";
  expect_error(
      [&] {
        write_checkpoint(real_file_system(), "/sys/kernel/checkpoints", content_of(memory, 1, 1));
      },
      ErrorCode::resources, "/sys/kernel/checkpoints");
}

}  // namespace
}  // namespace heddle
