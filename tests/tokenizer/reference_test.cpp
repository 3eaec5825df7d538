#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/file_system.h"
#include "support/source_dir.h"
#include "tokenizer/generated_texts.h"
#include "tokenizer/verify.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

fs::path shared_folder() {
  if (const char* given = std::getenv("HEDDLE_SHARED")) return given;
  return fs::path(source_dir()) / ".." / "shared";
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

fs::path references() { return fs::path(source_dir()) / "tests" / "reference"; }

TEST(TokenizerReference, EqualsHuggingFaceOnOurOwnReferences) {
  expect_all_equal(references() / "tokenizer");
  expect_all_equal(references() / "tokenizer-llama3");
}

/// One small tokenizer of each kind: 10,000 generated texts and every code point of Unicode 16.
class TokenizerKind : public testing::TestWithParam<std::string> {};

TEST_P(TokenizerKind, EqualsHuggingFace) {
  const fs::path folder = references() / "tokenizers" / GetParam();
  const auto tokenizer = Tokenizer::load(folder / "tokenizer.json");
  const auto report = verify_tokenizer(tokenizer, folder / "cases.json");
  EXPECT_GE(report.cases, 600);
  EXPECT_EQ(report.passed, report.cases);
  EXPECT_EQ(report.decode_passed, report.cases);
  for (const auto& failure : report.failures) {
    ADD_FAILURE() << failure.text << ": expected " << failure.expected << ", got " << failure.got;
  }
}

/// Pieces and words that were seen before are looked up, in whatever text they come again.
TEST_P(TokenizerKind, EncodesTheSameWithACache) {
  const auto tokenizer = Tokenizer::load(references() / "tokenizers" / GetParam());
  const TextRecipe recipe = read_text_recipe(references() / "tokenizers" / "texts.json");
  EncodeCache cache;
  std::vector<std::int32_t> cached;
  for (std::uint64_t i = 0; i < 2000; ++i) {
    const std::string text = generated_text(recipe, i % 1000);
    cached.clear();
    tokenizer.encode(text, {}, cache, cached);
    ASSERT_EQ(cached, tokenizer.encode(text)) << text;
  }
}

std::vector<std::string> kinds() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(references() / "tokenizers")) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

INSTANTIATE_TEST_SUITE_P(TokenizerReference, TokenizerKind, testing::ValuesIn(kinds()),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(TokenizerReference, SentencePieceModelsHaveItsIds) {
  for (const char* kind : {"bpe", "unigram"}) {
    const fs::path folder = references() / "sentencepiece" / kind;
    const auto tokenizer = Tokenizer::load(folder);
    const auto report = verify_tokenizer(tokenizer, folder / "cases.json");
    EXPECT_GE(report.cases, 500);
    EXPECT_EQ(report.passed, report.cases) << kind;
    for (const auto& failure : report.failures) {
      ADD_FAILURE() << failure.text << ": expected " << failure.expected << ", got " << failure.got;
    }
  }
}

TEST(TokenizerReference, ThereAreFourteenKinds) { EXPECT_GE(kinds().size(), 14U); }

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
  const auto other = Tokenizer::load(references() / "tokenizer-llama3" / "tokenizer.json");
  const auto report = verify_tokenizer(other, references() / "tokenizer" / "cases.json");
  EXPECT_FALSE(report.ok());
  EXPECT_LT(report.passed, report.cases);
  EXPECT_FALSE(report.corpus_equal);
  ASSERT_FALSE(report.failures.empty());
  EXPECT_NE(report.failures[0].expected, report.failures[0].got);
}

}  // namespace
}  // namespace heddle
