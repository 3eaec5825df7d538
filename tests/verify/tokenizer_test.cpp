#include <gtest/gtest.h>

#include "base/file_system.h"
#include "base/json.h"
#include "support/temporary_folder.h"
#include "tokenizer/verify.h"
#include "verify/shared_files.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

TEST(TokenizerCases, HoldForEveryReference) {
  int found = 0;
  for (const auto& entry : fs::recursive_directory_iterator(reference_folder())) {
    const fs::path tokenizer = entry.path().parent_path() / "tokenizer.json";
    if (entry.path().filename() != "cases.json" || !fs::exists(tokenizer)) continue;
    ++found;
    const auto report = verify_tokenizer(Tokenizer::load(tokenizer), entry.path());
    EXPECT_GT(report.cases, 0) << entry.path();
    EXPECT_TRUE(report.ok()) << entry.path();
  }
  EXPECT_GE(found, 22);
}

TEST(TokenizerCases, FailWhenOneIdIsAnother) {
  const fs::path folder = reference_folder() / "tokenizer";
  Json cases = read_json_file(folder / "cases.json");
  for (auto& one : cases["cases"]) {
    if (one["ids"].empty()) continue;
    one["ids"][0] = one["ids"][0].get<int>() + 1;
    break;
  }
  const TemporaryFolder temporary;
  const fs::path changed = temporary.path() / "cases.json";
  write_file_atomically(real_file_system(), changed, cases.dump());
  const auto report = verify_tokenizer(Tokenizer::load(folder / "tokenizer.json"), changed);
  EXPECT_FALSE(report.ok());
  EXPECT_EQ(report.passed, report.cases - 1);
}

}  // namespace
}  // namespace heddle
