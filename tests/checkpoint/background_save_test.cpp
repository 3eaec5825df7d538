#include "checkpoint/background_save.h"

#include <condition_variable>
#include <future>

#include "checkpoint/safetensors.h"
#include "checkpoint/staging.h"
#include "checkpoint/state_source.h"
#include "support.h"
#include "support/watched_file_system.h"

namespace heddle {
namespace {

using namespace testing_support;
using Status = BackgroundSave::Status;

/// Holds writers back until it is opened.
class Gate {
 public:
  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
};

/// A tensor of many rows, of which each is a box.
class Saved {
 public:
  static constexpr std::int64_t kRows = 64, kWidth = 1024;

  explicit Saved(FileSystem& files, std::size_t buffer_bytes)
      : tensor(counting(memory_, {kRows, kWidth})),
        layout_(std::make_shared<CheckpointLayout>(
            std::vector<KeptTensor>{{kWeightsKind, "w", DType::f32, tensor.shape()}})),
        staged_(stage_checkpoint(files, folder_.path(), 1, *layout_, 0)) {
    BackgroundSave::Task task{.files = &files,
                              .staged = staged_,
                              .layout = layout_,
                              .boxes = {},
                              .writer = 0,
                              .buffer_bytes = buffer_bytes};
    for (std::int64_t row = 0; row < kRows; ++row) {
      task.boxes.push_back({kWeightsKind, "w", {row, 0}, tensor.slice(0, row, row + 1)});
    }
    save.emplace(std::move(task));
  }

  const std::filesystem::path& staged() const { return staged_; }
  /// What an update does.
  void change() {
    for (float& value : tensor.host<float>()) value = -1;
  }
  /// Whether the file has what the tensor had in the beginning.
  bool has_old_values() {
    const Tensor read = memory_.alloc(tensor.shape(), DType::f32, MemoryTag::data);
    SafetensorsFile(staged_ / "model.safetensors").read("w", read);
    const Tensor old = counting(memory_, tensor.shape());
    return std::ranges::equal(read.host<float>(), old.host<float>());
  }

 private:
  TemporaryFolder folder_;
  Memory memory_;

 public:
  const Tensor tensor;

 private:
  const std::shared_ptr<const CheckpointLayout> layout_;
  const std::filesystem::path staged_;

 public:
  std::optional<BackgroundSave> save;
};

constexpr std::size_t kRowBytes = Saved::kWidth * sizeof(float);

TEST(BackgroundSave, LetsGoWithoutTheDiskWhereTheBufferHasRoom) {
  Gate gate;
  WatchedFileSystem files([&](const auto&, std::size_t) { gate.pass(); });
  Saved saved(files, Saved::kRows * kRowBytes);
  saved.save->let_go();  // nothing can be written yet
  EXPECT_EQ(saved.save->status(), Status::busy);
  saved.change();
  gate.open();
  saved.save->wait();
  EXPECT_EQ(saved.save->status(), Status::durable);
  EXPECT_TRUE(saved.has_old_values());
}

TEST(BackgroundSave, WaitsForTheDiskBeyondABoundedBuffer) {
  Gate gate;
  WatchedFileSystem files([&](const auto&, std::size_t) { gate.pass(); });
  constexpr std::size_t kRoom = 5 * kRowBytes;
  Saved saved(files, kRoom);
  auto opener = std::async(std::launch::async, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    gate.open();
  });
  saved.save->let_go();
  saved.change();
  saved.save->wait();
  EXPECT_EQ(saved.save->status(), Status::durable);
  EXPECT_TRUE(saved.has_old_values());
  EXPECT_LE(saved.save->peak_bytes(), kRoom + 2 * kRowBytes) << "the buffer, and what is written";
}

TEST(BackgroundSave, TellsAnErrorInsteadOfThrowingIt) {
  WatchedFileSystem files([](const auto& path, std::size_t) {
    fail(ErrorCode::resources, "cannot write {}: no space left", path.string());
  });
  Saved saved(files, kRowBytes);
  saved.save->let_go();
  saved.save->wait();
  EXPECT_EQ(saved.save->status(), Status::failed);
  EXPECT_NE(std::string(saved.save->error()->what()).find("model.safetensors: no space left"),
            std::string::npos);
}

TEST(BackgroundSave, ThatIsGivenUpLeavesNoRecord) {
  Gate gate;
  WatchedFileSystem files([&](const auto&, std::size_t) { gate.pass(); });
  Saved saved(files, kRowBytes);
  auto opener = std::async(std::launch::async, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    gate.open();
  });
  saved.save.reset();  // ends behind what is being written
  EXPECT_FALSE(std::filesystem::exists(saved.staged() / "records" / "00000.json"));
}

}  // namespace
}  // namespace heddle
