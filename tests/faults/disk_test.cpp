#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "checkpoint/reader.h"
#include "support/source_dir.h"
#include "train/tiny_run.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

/// The one line that says what went wrong.
std::string error_line(const Outcome& outcome) {
  const auto at = outcome.err.find("error: ");
  return at == std::string::npos ? "" : outcome.err.substr(at, outcome.err.find('\n', at) - at);
}

void expect_refused_and_step_kept(const TinyRun& run, const Outcome& outcome, std::int64_t step) {
  EXPECT_EQ(outcome.status, 3) << outcome.err;
  EXPECT_NE(error_line(outcome).find("checkpoints"), std::string::npos) << outcome.err;
  const auto latest = open_latest(run.checkpoints());
  ASSERT_TRUE(latest.has_value());
  EXPECT_EQ(latest->manifest().step, step);
}

TEST(FullDisk, EndsWithTheFilesNameAndThePreviousCheckpointWhole) {
  const TinyRun run;
  ASSERT_EQ(run.train({"train.steps=2", "optim.schedule=constant"}).status, 0);
  // Less than the file of the weights, more than those of a line each.
  const Outcome outcome = run.train({"optim.schedule=constant"}, {}, {.file_size_limit = 100'000});
  expect_refused_and_step_kept(run, outcome, 2);
  EXPECT_NE(error_line(outcome).find(".safetensors"), std::string::npos) << outcome.err;

  const Outcome resumed = run.train({"optim.schedule=constant"});
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_TRUE(list_leftovers(run.checkpoints()).empty());
}

/// A file system in memory over `folder`, while the object lives.
class SmallFileSystem {
 public:
  SmallFileSystem(fs::path folder, const char* options) : folder_(std::move(folder)) {
    fs::create_directories(folder_);
    is_mounted_ = ::mount("heddle-test", folder_.c_str(), "tmpfs", 0, options) == 0;
  }
  ~SmallFileSystem() {
    if (is_mounted_) ::umount2(folder_.c_str(), MNT_DETACH);
  }
  SmallFileSystem(const SmallFileSystem&) = delete;
  SmallFileSystem& operator=(const SmallFileSystem&) = delete;
  bool is_mounted() const { return is_mounted_; }

 private:
  fs::path folder_;
  bool is_mounted_ = false;
};

TEST(FullDisk, OfAFileSystemThatHasNoMoreRoom) {
  const TinyRun run;
  const SmallFileSystem disk(run.run_folder(), "size=2m");  // room for one checkpoint, not for two
  if (!disk.is_mounted()) {
    GTEST_SKIP() << "may not mount a small file system: " << std::strerror(errno);
  }
  expect_refused_and_step_kept(run, run.train(), 4);
}

TEST(FullDisk, CostsMetricsLogAndTraceButNotTheRun) {
  const TinyRun run;
  const SmallFileSystem disk(run.run_folder(), "size=100k");
  if (!disk.is_mounted()) {
    GTEST_SKIP() << "may not mount a small file system: " << std::strerror(errno);
  }
  const Outcome outcome =
      run.train({"train.steps=400", "train.tokens_per_step=64", "checkpoint.every=0",
                 "checkpoint.on_exit=false", "observe.report=false", "observe.trace=true"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  for (const char* lost : {"metrics.jsonl metrics stop here, training goes on",
                           "log.txt lacks lines from here on", "the trace lacks steps"}) {
    EXPECT_NE(outcome.err.find(lost), std::string::npos) << lost;
  }
}

TEST(UnwritableFolder, IsRefusedByName) {
  const TinyRun run;
  run.write("file", "in the way");
  const std::string below = (run.path() / "file" / "run").string();
  const Outcome outcome = run.train({"run.dir=" + below});
  EXPECT_EQ(outcome.status, 3) << outcome.err;
  EXPECT_NE(error_line(outcome).find(below), std::string::npos) << outcome.err;
}

TEST(UnwritableFolder, WithoutPermissionIsRefusedByName) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  const TinyRun run;
  fs::create_directories(run.run_folder());
  fs::permissions(run.run_folder(), fs::perms::owner_read | fs::perms::owner_exec);
  const Outcome outcome = run.train();
  fs::permissions(run.run_folder(), fs::perms::owner_all);
  EXPECT_EQ(outcome.status, 3) << outcome.err;
  EXPECT_NE(error_line(outcome).find(run.run_folder().string()), std::string::npos) << outcome.err;
}

TEST(UnwritableFolder, IsRefusedByEveryVerbThatWrites) {
  const TinyRun run;
  run.write("file", "in the way");
  const std::string below = (run.path() / "file" / "out").string();
  const std::string model = source_dir() + "/tests/reference/models/llama";
  const std::string tokenizer = source_dir() + "/tests/reference/tokenizer";
  const std::string text = (run.path() / "text.txt").string();
  run.write("text.txt", "one two three one two three\n");
  for (const auto& arguments : std::vector<std::vector<std::string>>{
           {"convert", model, "--out", below},
           {"tokenize", text, "--tokenizer", tokenizer, "--out", below, "--threads", "1"},
           {"tokenizer", "train", text, "--vocab", "260", "--out", below, "--threads", "1"},
           {"demo-text", "--out", below, "--bytes", "100"}}) {
    const Outcome outcome = run_heddle(arguments);
    EXPECT_EQ(outcome.status, 3) << arguments[0] << ": " << outcome.err;
    EXPECT_NE(error_line(outcome).find((run.path() / "file").string()), std::string::npos)
        << outcome.err;
  }
}

}  // namespace
}  // namespace heddle
