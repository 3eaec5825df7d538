#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "base/file_system.h"
#include "tokenizer/verify.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

fs::path shared_folder() {
  if (const char* given = std::getenv("HEDDLE_SHARED")) return given;
  return fs::path(HEDDLE_SOURCE_DIR) / ".." / "shared";
}

void expect_all_equal(const fs::path& folder) {
  const auto tokenizer = Tokenizer::load(folder / "tokenizer.json");
  const auto report = verify_tokenizer(tokenizer, folder / "cases.json");
  EXPECT_GE(report.cases, 400) << folder;
  EXPECT_EQ(report.passed, report.cases) << folder;
  EXPECT_EQ(report.decode_passed, report.cases) << folder;
  EXPECT_TRUE(report.has_corpus && report.corpus_equal) << folder;
  for (const auto& failure : report.failures) {
    ADD_FAILURE() << failure.text << ": expected " << failure.expected << ", got " << failure.got;
  }
}

TEST(TokenizerReference, EqualsHuggingFaceOnOurOwnReferences) {
  const fs::path references = fs::path(HEDDLE_SOURCE_DIR) / "tests" / "reference";
  for (const auto& entry : fs::directory_iterator(references)) {
    if (!entry.path().filename().string().starts_with("tokenizer")) continue;
    expect_all_equal(entry.path());
  }
}

TEST(TokenizerReference, EqualsHuggingFaceOnTheSharedFixtures) {
  const fs::path fixtures = shared_folder() / "fixtures";
  if (!fs::exists(fixtures)) GTEST_SKIP() << "no fixtures at " << fixtures;
  expect_all_equal(fixtures / "tokenizer-gpt2");
  expect_all_equal(fixtures / "tokenizer-llama3-style");
}

TEST(TokenizerReference, EncodesTheSameWithAndWithoutACache) {
  const fs::path folder = shared_folder() / "fixtures" / "tokenizer-gpt2";
  if (!fs::exists(folder)) GTEST_SKIP() << "no fixtures at " << folder;
  const auto tokenizer = Tokenizer::load(folder / "tokenizer.json");
  const auto text = read_text_file(shared_folder() / "data" / "tinyshakespeare.txt");
  const auto whole = tokenizer.encode(text);
  EncodeCache cache;
  std::vector<std::int32_t> cached;
  tokenizer.encode(text, {}, cache, cached);
  EXPECT_EQ(cached, whole);
  tokenizer.encode(text, {}, cache, cached);
  EXPECT_EQ(cached.size(), 2 * whole.size());
  EXPECT_TRUE(std::equal(whole.begin(), whole.end(), cached.begin() + whole.size()));
  EXPECT_EQ(tokenizer.decode(whole), text);
}

TEST(TokenizerReference, IdsThatDifferAreReportedAsFailures) {
  const fs::path references = fs::path(HEDDLE_SOURCE_DIR) / "tests" / "reference";
  const auto other = Tokenizer::load(references / "tokenizer-llama3" / "tokenizer.json");
  const auto report = verify_tokenizer(other, references / "tokenizer" / "cases.json");
  EXPECT_FALSE(report.ok());
  EXPECT_LT(report.passed, report.cases);
  EXPECT_FALSE(report.corpus_equal);
  ASSERT_FALSE(report.failures.empty());
  EXPECT_NE(report.failures[0].expected, report.failures[0].got);
}

}  // namespace
}  // namespace heddle
