#include <gtest/gtest.h>

#include "train/text_run.h"

namespace heddle {
namespace {

bool says(const Outcome& outcome, const std::string& text) {
  return outcome.err.find(text) != std::string::npos;
}

/// With text.tokens, made with tokenizer.json, and another.json, which differs from it.
class RunTokenizerTest : public testing::Test {
 protected:
  RunTokenizerTest() {
    run_.write("another.json", read_text_file(run_.at("tokenizer.json")) + "\n");
    EXPECT_EQ(run_.run({"tokenize", "text.jsonl", "--tokenizer", "tokenizer.json", "--out",
                        "text.tokens"})
                  .status,
              0);
  }
  void expect_refused(const Outcome& outcome) {
    EXPECT_EQ(outcome.status, 5) << outcome.err;
    EXPECT_TRUE(says(outcome, "text.tokens was made with another tokenizer")) << outcome.err;
    EXPECT_TRUE(says(outcome, "another.json") || says(outcome, "model/tokenizer.json"));
  }
  TextRun run_;
};

TEST_F(RunTokenizerTest, OfATokenFileMustBeTheRunsOwn) {
  expect_refused(run_.train({"data.train=text.tokens", "data.tokenizer=another.json"}));
  EXPECT_FALSE(std::filesystem::exists(run_.checkpoint(8)));
  expect_refused(run_.train({"data.eval=text.tokens", "data.tokenizer=another.json"}));
  EXPECT_EQ(run_.train({"data.train=text.tokens"}).status, 0);
  EXPECT_EQ(read_text_file(run_.checkpoint(8) / "tokenizer.json"),
            read_text_file(run_.at("tokenizer.json")));
  expect_refused(run_.run({"eval", "run", "--data", "text.tokens", "--tokenizer", "another.json"}));
  EXPECT_EQ(run_.run({"eval", "run", "--data", "text.tokens"}).status, 0);
}

TEST_F(RunTokenizerTest, OfAModelsFolderIsComparedToo) {
  ASSERT_EQ(run_.train({"data.train=text.tokens"}).status, 0);
  std::filesystem::copy(run_.checkpoint(8), run_.path() / "model",
                        std::filesystem::copy_options::recursive);
  run_.write("model/tokenizer.json", read_text_file(run_.at("another.json")));
  std::string text = TextRun::run_file("");
  for (const std::string line :
       {"config = \"config.json\"\n", "tokenizer = \"tokenizer.json\"\n"}) {
    text.erase(text.find(line), line.size());
  }
  run_.write("run.toml", text);
  expect_refused(run_.train({"data.train=text.tokens", "model.path=model", "run.dir=second"}));
}

TEST_F(RunTokenizerTest, OfAnUnsupportedKindBlocksNobodyWhoDoesNotTokenize) {
  const std::string unigram = R"({"model": {"type": "Unigram", "vocab": []}, "made": "elsewhere"})";
  run_.write("unigram.json", unigram);
  std::vector<std::int32_t> tokens(5000, 7);
  for (std::size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<std::int32_t>(i * 7 % 601);
  const std::vector<std::int64_t> starts = {0, 2500};
  write_token_file(real_file_system(), run_.path() / "other.tokens",
                   {640, content_hash(std::as_bytes(std::span(unigram)))}, tokens, starts);
  const std::vector<std::string> settings = {"data.train=other.tokens",
                                             "data.tokenizer=unigram.json"};
  const Outcome outcome = run_.train(settings);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(says(outcome, "unigram.json")) << "a warning says so: " << outcome.err;
  EXPECT_EQ(read_text_file(run_.checkpoint(8) / "tokenizer.json"), unigram);
  const Outcome eval = run_.run({"eval", "run", "--data", "other.tokens"});
  EXPECT_EQ(eval.status, 0) << eval.err;
  EXPECT_EQ(run_.run({"inspect", "run"}).status, 0);
  EXPECT_EQ(run_.run({"convert", "run", "--out", "converted"}).status, 0);
  EXPECT_EQ(read_text_file(run_.at("converted/tokenizer.json")), unigram);

  const Outcome text = run_.run({"eval", "run", "--data", "text.jsonl"});
  EXPECT_EQ(text.status, 5) << text.err;
  EXPECT_TRUE(says(text, "text.jsonl is text and cannot be tokenized")) << text.err;
}

TEST_F(RunTokenizerTest, OfAFormThatCannotBeReadBlocksNobodyWhoDoesNotTokenize) {
  std::filesystem::create_directory(run_.path() / "odd");
  run_.write("odd/vocab.json", R"({"a": 0})");
  run_.write("odd/tokenizer_config.json", R"({"tokenizer_class": "OddTokenizer"})");
  std::vector<std::int32_t> tokens(5000, 7);
  for (std::size_t i = 0; i < tokens.size(); ++i)
    tokens[i] = static_cast<std::int32_t>(i * 7 % 601);
  const std::vector<std::int64_t> starts = {0};
  write_token_file(real_file_system(), run_.path() / "other.tokens", {640, 0}, tokens, starts);
  const Outcome outcome = run_.train({"data.train=other.tokens", "data.tokenizer=odd"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(says(outcome, "odd/vocab.json has no merges.txt beside it")) << outcome.err;
  EXPECT_EQ(read_text_file(run_.checkpoint(8) / "vocab.json"), R"({"a": 0})");
  const Outcome absent = run_.train({"data.train=other.tokens", "data.tokenizer=nowhere"});
  EXPECT_NE(absent.status, 0) << "a name that was mistyped";
}

TEST_F(RunTokenizerTest, OfAnExportHasAConfigThatNamesItsTokens) {
  ASSERT_EQ(run_.train({"data.train=text.tokens"}).status, 0);
  std::filesystem::create_directory(run_.path() / "plain");
  for (const char* name : {"config.json", "tokenizer.json", "model.safetensors"}) {
    std::filesystem::copy(run_.checkpoint(8) / name, run_.path() / "plain" / name);
  }
  const auto made = read_json_file(run_.checkpoint(8) / "tokenizer_config.json");
  const Outcome bare = run_.run({"convert", "plain", "--out", "bare"});
  ASSERT_EQ(bare.status, 0) << bare.err;
  EXPECT_EQ(read_json_file(run_.at("bare/tokenizer_config.json")), made);
  run_.write("plain/tokenizer_config.json", "{}");
  ASSERT_EQ(run_.run({"convert", "plain", "--out", "kept"}).status, 0);
  EXPECT_EQ(read_text_file(run_.at("kept/tokenizer_config.json")), "{}") << "as it came";
}

TEST_F(RunTokenizerTest, IsOnlyWarnedAboutWhereATokenFileDoesNotSay) {
  std::vector<std::int32_t> tokens(5000, 7);
  const std::vector<std::int64_t> starts = {0};
  write_token_file(real_file_system(), run_.path() / "unknown.tokens", {603, 0}, tokens, starts);
  const Outcome outcome = run_.train({"data.train=unknown.tokens", "train.steps=2"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(says(outcome, "unknown.tokens does not say which tokenizer")) << outcome.err;
}

}  // namespace
}  // namespace heddle
