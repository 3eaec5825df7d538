#include <gtest/gtest.h>

#include "base/file_system.h"
#include "config/explain.h"
#include "support/source_dir.h"

namespace heddle::config {
namespace {

TEST(RunFileDocument, IsUpToDate) {
  EXPECT_EQ(read_text_file(source_dir() + "/docs/run-file.md"), explain_markdown())
      << "run: heddle config explain all --markdown > docs/run-file.md";
}

TEST(Recipes, Load) {
  const auto run = load_run_file(source_dir() + "/configs/recipes/pretrain-110m.toml");
  EXPECT_EQ(run.config.model.preset, "llama-110m");
  EXPECT_EQ(run.config.run.name, "pretrain-110m");
}

}  // namespace
}  // namespace heddle::config
