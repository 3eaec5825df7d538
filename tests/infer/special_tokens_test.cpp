#include "infer/special_tokens.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file_system.h"
#include "data/encode.h"
#include "support/temporary_folder.h"
#include "tokenizer/tiny_tokenizer.h"

namespace heddle {
namespace {

using Ids = std::vector<std::int32_t>;

/// With these added tokens, from id 256 on.
TinyTokenizer tokenizer_with(const std::vector<std::string>& added) {
  TinyTokenizer tiny;
  int id = 256;
  for (const auto& content : added) tiny.added_tokens.push_back(added_token(id++, content));
  return tiny;
}

TEST(SpecialTokens, AreFoundByTheirUsualNames) {
  const SpecialTokens llama3 =
      special_tokens(tokenizer_with({"<|begin_of_text|>", "<|end_of_text|>"}).load());
  EXPECT_EQ(llama3.bos, 256);
  EXPECT_EQ(llama3.eos, 257);
  EXPECT_EQ(llama3.pad, std::nullopt);
  const SpecialTokens named = special_tokens(tokenizer_with({"<pad>", "</s>", "<s>"}).load());
  EXPECT_EQ(named.bos, 258);
  EXPECT_EQ(named.eos, 257);
  EXPECT_EQ(named.pad, 256);
}

TEST(SpecialTokens, OfDeepSeekHaveBarsOfFullWidth) {
  const SpecialTokens tokens =
      special_tokens(tokenizer_with({"<\xEF\xBD\x9C"
                                     "begin\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",
                                     "<\xEF\xBD\x9C"
                                     "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>"})
                         .load());
  EXPECT_EQ(tokens.bos, 256);
  EXPECT_EQ(tokens.eos, 257);
}

TEST(SpecialTokens, EndOfTextBeginsAndEndsAsInGpt2) {
  const SpecialTokens tokens = special_tokens(tokenizer_with({"<|endoftext|>"}).load());
  EXPECT_EQ(tokens.bos, 256);
  EXPECT_EQ(tokens.eos, 256);
}

TEST(SpecialTokens, AreAbsentWhereTheTokenizerHasNone) {
  const SpecialTokens tokens = special_tokens(TinyTokenizer{}.load());
  EXPECT_FALSE(tokens.bos || tokens.eos || tokens.pad);
}

TEST(SpecialTokens, TheEndIsTheOneAskedFor) {
  const Tokenizer tokenizer = tokenizer_with({"</s>", "<|turn|>"}).load();
  EXPECT_EQ(special_tokens(tokenizer, "<|turn|>").eos, 257);
  EXPECT_EQ(special_tokens(tokenizer, "none").eos, std::nullopt);
}

TEST(SpecialTokens, WhatThePostProcessorPutsInFrontBegins) {
  TinyTokenizer tiny = tokenizer_with({"<s>", "<|start|>", "</s>"});
  tiny.post_processor = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", "<|start|>"}, {"type_id", 0}}}},
        {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
      {"pair",
       {{{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
        {{"Sequence", {{"id", "B"}, {"type_id", 0}}}}}},
      {"special_tokens",
       {{"<|start|>", {{"id", "<|start|>"}, {"ids", {257}}, {"tokens", {"<|start|>"}}}}}}};
  EXPECT_EQ(special_tokens(tiny.load()).bos, 257);
}

TEST(SpecialTokens, AreThoseThatTheTokenizersFilesName) {
  const TinyTokenizer tiny = tokenizer_with({"<s>", "</s>", "<|im_end|>", "<unused>"});
  const TokenRoles roles = {
      {"bos_token", "<unused>"}, {"eos_token", "<|im_end|>"}, {"pad_token", "</s>"}};
  const Tokenizer tokenizer = Tokenizer::from_json(tiny.json().dump(), "tiny.json", roles);
  const SpecialTokens tokens = special_tokens(tokenizer);
  EXPECT_EQ(tokens.bos, 259);
  EXPECT_EQ(tokens.eos, 258);
  EXPECT_EQ(tokens.pad, 257);
  EXPECT_EQ(special_tokens(tokenizer, "</s>").eos, 257) << "who asks for another gets it";
  const Tokenizer misnamed =
      Tokenizer::from_json(tiny.json().dump(), "tiny.json", {{"eos_token", "<|elsewhere|>"}});
  EXPECT_EQ(special_tokens(misnamed).eos, 257) << "no token of this tokenizer";
}

class EndTokens : public testing::Test {
 protected:
  void write(const char* name, const std::string& content) {
    write_file_atomically(real_file_system(), folder_.path() / name, content);
  }
  Ids found() const { return end_tokens(folder_.path(), tokenizer_); }

  TemporaryFolder folder_;
  Tokenizer tokenizer_ = tokenizer_with({"</s>"}).load();
};

TEST_F(EndTokens, AreTheTokenizersWhereNoFileSays) {
  EXPECT_EQ(found(), Ids{256});
  write("config.json", R"({"eos_token_id": null})");
  write("generation_config.json", "{}");
  EXPECT_EQ(found(), Ids{256});
}

TEST_F(EndTokens, AreAllOfTheGenerationConfigAndTheConfig) {
  write("config.json", R"({"eos_token_id": 7})");
  EXPECT_EQ(found(), Ids{7});
  write("generation_config.json", R"({"eos_token_id": [8, 9]})");
  EXPECT_EQ(found(), (Ids{8, 9, 7}));
  write("config.json", R"({"eos_token_id": [9, 10]})");
  EXPECT_EQ(found(), (Ids{8, 9, 10}));
  write("generation_config.json", R"({"eos_token_id": null})");
  EXPECT_EQ(found(), (Ids{9, 10}));
}

TEST_F(EndTokens, ThatAreNoIdsAreRefusedByName) {
  for (const char* value : {"\"</s>\"", "-1", "1.5", "[1, \"x\"]", "99999999999", "{}"}) {
    write("config.json", std::string(R"({"eos_token_id": )") + value + "}");
    try {
      found();
      FAIL() << value << " was accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::data);
      EXPECT_NE(std::string(e.what()).find("config.json: eos_token_id = "), std::string::npos)
          << e.what();
    }
  }
}

}  // namespace
}  // namespace heddle
