#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "support/source_dir.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

/// The commands of scripts/demo.sh, with less text and fewer steps, in a folder of their own.
class TinyCpuExample : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("heddle-example-" + std::to_string(::getpid()));
    fs::create_directories(folder_);
    fs::copy(fs::path(source_dir()) / "examples", folder_ / "examples",
             fs::copy_options::recursive);
  }
  void TearDown() override { fs::remove_all(folder_); }

  int heddle(const std::string& arguments) const {
    const std::string command =
        "cd '" + folder_.string() + "' && " HEDDLE_PROGRAM " " + arguments + " 2>>log.txt";
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  bool exists(const std::string& path) const { return fs::exists(folder_ / path); }

  fs::path folder_;
};

TEST_F(TinyCpuExample, GoesFromTextToAReportAndAStory) {
  ASSERT_EQ(heddle("demo-text --bytes 200000 --out runs/demo-text/text.jsonl"), 0);
  ASSERT_EQ(heddle("tokenizer train runs/demo-text/text.jsonl --vocab 512 "
                   "--special '<|endoftext|>' --out runs/demo-text/tokenizer.json"),
            0);
  // An option's value ends where it ends: what follows is the run file.
  ASSERT_EQ(heddle("train --set train.steps=2 --set optim.warmup_steps=1 "
                   "examples/01_tiny_cpu/run.toml --fresh"),
            0);
  EXPECT_TRUE(exists("runs/demo/report.html"));
  EXPECT_TRUE(exists("runs/demo/checkpoints/step-000002/COMMIT"));
  EXPECT_EQ(heddle("generate runs/demo --prompt 'Today Nora' --seed 7 >story.txt"), 0);
  EXPECT_GT(fs::file_size(folder_ / "story.txt"), 0U);
}

}  // namespace
}  // namespace heddle
