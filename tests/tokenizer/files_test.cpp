#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/file_system.h"
#include "base/json.h"
#include "support/source_dir.h"
#include "tokenizer/files/tokenizer_files.h"
#include "tokenizer/generated_texts.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/verify.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

fs::path references() { return fs::path(source_dir()) / "tests" / "reference"; }

class TokenizerFiles : public testing::Test {
 protected:
  TokenizerFiles() {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~TokenizerFiles() override { fs::remove_all(folder_); }

  void write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ / name, std::ios::binary) << content;
  }
  /// vocab.json and merges.txt of a reference tokenizer.
  void write_vocab_and_merges(const std::string& kind) const {
    const Json json = read_json_file(references() / "tokenizers" / kind / "tokenizer.json");
    Json vocab = json["model"]["vocab"];
    for (const Json& token : json["added_tokens"]) {
      vocab[token["content"].get<std::string>()] = token["id"];
    }
    std::string merges = "#version: 0.2\n";
    for (const Json& merge : json["model"]["merges"]) {
      merges += merge[0].get<std::string>() + " " + merge[1].get<std::string>() + "\n";
    }
    write("vocab.json", vocab.dump());
    write("merges.txt", merges);
  }
  void expect_refused(const std::string& part) const {
    try {
      Tokenizer::load(folder_);
      ADD_FAILURE() << "accepted; expected a message with: " << part;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::data);
      EXPECT_NE(e.message().find(part), std::string::npos) << e.message();
    }
  }

  fs::path folder_ =
      fs::path(testing::TempDir()) / testing::UnitTest::GetInstance()->current_test_info()->name();
};

/// Texts without added tokens, of which a vocab.json says nothing.
void expect_same_ids(const Tokenizer& one, const Tokenizer& other) {
  TextRecipe recipe = read_text_recipe(references() / "tokenizers" / "texts.json");
  std::erase_if(recipe.pieces, [](const std::string& piece) {
    return piece.find_first_of("<[") != std::string::npos || piece == "weft" || piece == "工具" ||
           piece == "    ";
  });
  for (std::uint64_t i = 0; i < 2000; ++i) {
    const std::string text = generated_text(recipe, i);
    const auto ids = one.encode(text);
    if (text.find("工具") != std::string::npos || text.find("    ") != std::string::npos) continue;
    ASSERT_EQ(ids, other.encode(text)) << text;
    ASSERT_EQ(one.decode(ids), other.decode(ids)) << text;
  }
}

TEST_F(TokenizerFiles, VocabAndMergesAreGpt2WhereNothingElseIsSaid) {
  write_vocab_and_merges("gpt2");
  const auto tokenizer = Tokenizer::load(folder_);
  expect_same_ids(tokenizer, Tokenizer::load(references() / "tokenizers" / "gpt2"));
  const auto end = tokenizer.id_of("<|endoftext|>");
  ASSERT_TRUE(end.has_value());
  EXPECT_TRUE(tokenizer.is_special(*end));
  EXPECT_EQ(tokenizer.encode("<|endoftext|>"), std::vector{*end});
}

TEST_F(TokenizerFiles, WhatAConfigLeavesOpenIsAsIfItSaidNothing) {
  write_vocab_and_merges("gpt2");
  const Tokenizer usual = Tokenizer::load(folder_);
  for (const char* config : {R"({"tokenizer_class": null, "add_prefix_space": null})",
                             R"({"tokenizer_class": 5, "add_prefix_space": "no"})"}) {
    write("tokenizer_config.json", config);
    expect_same_ids(Tokenizer::load(folder_), usual);
  }
  write("tokenizer_config.json", R"({"added_tokens_decoder": {"8": {"content": 1}}})");
  expect_refused("content is empty");
}

TEST_F(TokenizerFiles, VocabAndMergesFollowTheirClass) {
  write_vocab_and_merges("qwen");
  write("tokenizer_config.json", R"({"tokenizer_class": "Qwen2Tokenizer"})");
  expect_same_ids(Tokenizer::load(folder_), Tokenizer::load(references() / "tokenizers" / "qwen"));

  write_vocab_and_merges("roberta");
  write("tokenizer_config.json", R"({"tokenizer_class": "RobertaTokenizer",
      "add_prefix_space": true, "bos_token": "<s>", "eos_token": {"content": "</s>"}})");
  const auto roberta = Tokenizer::load(folder_ / "vocab.json");
  const auto reference = Tokenizer::load(references() / "tokenizers" / "roberta");
  expect_same_ids(roberta, reference);
  EXPECT_EQ(roberta.encode("a", {.add_special = true}),
            reference.encode("a", {.add_special = true}));

  write("tokenizer_config.json", R"({"tokenizer_class": "CLIPTokenizer"})");
  expect_refused("how a CLIPTokenizer cuts text is not known");
}

TEST_F(TokenizerFiles, AddedTokensKeepTheirFlags) {
  write_vocab_and_merges("gpt2");
  write("tokenizer_config.json", R"({"added_tokens_decoder": {"9000": {"content": "<tool>",
      "lstrip": true, "special": false}}})");
  const auto tokenizer = Tokenizer::load(folder_);
  EXPECT_EQ(tokenizer.encode("  <tool>"), std::vector{9000});
  EXPECT_FALSE(tokenizer.is_special(9000));
}

TEST_F(TokenizerFiles, FilesBesideItSayWhichTokenHasWhichRole) {
  fs::copy_file(references() / "tokenizers" / "roberta" / "tokenizer.json",
                folder_ / "tokenizer.json");
  EXPECT_FALSE(Tokenizer::load(folder_).token_of("eos_token")) << "the file itself does not say";
  write("tokenizer_config.json", R"({"bos_token": null, "eos_token": {"content": "<s>"}})");
  write("special_tokens_map.json", R"({"eos_token": "</s>", "pad_token": "</s>"})");
  auto tokenizer = Tokenizer::load(folder_);
  EXPECT_EQ(tokenizer.token_of("eos_token"), tokenizer.id_of("</s>")) << "the map goes before";
  EXPECT_EQ(tokenizer.token_of("pad_token"), tokenizer.id_of("</s>"));
  EXPECT_FALSE(tokenizer.token_of("bos_token"));
  write("tokenizer_config.json", R"({"eos_token": "<s>", "added_tokens_decoder": {}})");
  tokenizer = Tokenizer::load(folder_);
  EXPECT_EQ(tokenizer.token_of("eos_token"), tokenizer.id_of("<s>")) << "the config alone counts";
  EXPECT_FALSE(tokenizer.token_of("pad_token"));
  write("special_tokens_map.json", "[]");
  expect_refused("special_tokens_map.json: not an object");
}

TEST_F(TokenizerFiles, SentencePieceSaysWhatSurroundsTexts) {
  const std::string model =
      read_text_file(references() / "sentencepiece" / "bpe" / "tokenizer.model");
  write("tokenizer.model", model);
  const auto plain = Tokenizer::load(folder_).encode("a", {.add_special = true});
  write("tokenizer_config.json", R"({"tokenizer_class": "LlamaTokenizer"})");
  auto expected = plain;
  expected.insert(expected.begin(), 1);
  EXPECT_EQ(Tokenizer::load(folder_).encode("a", {.add_special = true}), expected);
  write("tokenizer_config.json", R"({"tokenizer_class": "LlamaTokenizer", "add_bos_token": false,
      "add_eos_token": true})");
  expected.erase(expected.begin());
  expected.push_back(2);
  EXPECT_EQ(Tokenizer::load(folder_).encode("a", {.add_special = true}), expected);
}

TEST_F(TokenizerFiles, SentencePieceDecodesWhatItEncodes) {
  const auto tokenizer = Tokenizer::load(references() / "sentencepiece" / "bpe");
  for (const char* text : {"the loom", "  two  spaces ", "caf\u00E9 \U0001F642\n\n7", ""}) {
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
}

TEST_F(TokenizerFiles, DamagedModelsAreRefused) {
  const std::string model =
      read_text_file(references() / "sentencepiece" / "unigram" / "tokenizer.model");
  for (std::size_t length = 1; length < model.size(); length += 97) {
    write("tokenizer.model", model.substr(0, length));
    try {
      Tokenizer::load(folder_).encode("the loom");
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::data);
    }
  }
  write("tokenizer.model", std::string("\x0A\x05\x0A\x03", 4) + "abc");
  expect_refused("has no unknown piece");
  write("tokenizer.model", "\x0A\xFF\xFF");
  expect_refused("is damaged");
  write("tokenizer.model", std::string("\x0A\x02\x0A", 3) + std::string(1, '\0'));
  expect_refused("a piece is empty");
}

/// What BertTokenizer of transformers makes of the same folders.
TEST(WordPieceFiles, AreThoseOfTransformers) {
  for (const char* kind : {"bare", "cased", "older"}) {
    const fs::path folder = references() / "wordpiece" / kind;
    const auto report = verify_tokenizer(Tokenizer::load(folder), folder / "cases.json");
    EXPECT_GT(report.cases, 100) << kind;
    EXPECT_TRUE(report.ok()) << kind << ": " << report.passed << " and " << report.decode_passed
                             << " of " << report.cases
                             << (report.failures.empty() ? "" : report.failures[0].text);
  }
}

TEST_F(TokenizerFiles, AVocabTxtNamesItsTokensAsBertDoes) {
  write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n");
  const auto roles = [this] { return read_tokenizer(folder_).roles; };
  EXPECT_EQ(roles().at("cls_token"), "[CLS]");
  EXPECT_EQ(roles().at("pad_token"), "[PAD]");
  EXPECT_FALSE(roles().contains("eos_token"));
  write("tokenizer_config.json", R"({"eos_token": "[SEP]", "pad_token": null, "unk_token": "b"})");
  EXPECT_EQ(roles().at("eos_token"), "[SEP]");
  EXPECT_EQ(roles().at("unk_token"), "b");
  EXPECT_FALSE(roles().contains("pad_token"));
  EXPECT_EQ(Tokenizer::load(folder_).encode("a c"), (std::vector<std::int32_t>{5, 6}));
}

TEST_F(TokenizerFiles, WordPiecesOfOtherClassesAndDamagedOnesAreRefused) {
  write("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n");
  write("tokenizer_config.json", R"({"tokenizer_class": "MPNetTokenizer"})");
  expect_refused("how a MPNetTokenizer cuts text is not known");
  write("tokenizer_config.json", R"({"do_lower_case": "yes"})");
  expect_refused("do_lower_case beside it is neither true nor false");
  write("tokenizer_config.json", R"({"cls_token": null})");
  expect_refused("has no cls_token");
  write("tokenizer_config.json", R"({"added_tokens_decoder": [1]})");
  expect_refused("added_tokens_decoder beside it is no object");
  fs::remove(folder_ / "tokenizer_config.json");
  write("added_tokens.json", R"({"x": "y"})");
  expect_refused("\"x\" has no id in added_tokens.json");
  fs::remove(folder_ / "added_tokens.json");
  write("vocab.txt", "[UNK]\n[CLS]\n[SEP]\na\na\n");
  expect_refused("a token on two lines");
  write("vocab.txt", "[PAD]\n[CLS]\n[SEP]\n[MASK]\na\n");
  expect_refused("\"[UNK]\" is not in the vocabulary");
  write("vocab.txt", "[UNK]\n\xFF\n");
  expect_refused("byte 6 is not UTF-8");
  write("vocab.txt", "");
  expect_refused("vocab is empty");
}

TEST_F(TokenizerFiles, FoldersSayWhatTheyLack) {
  expect_refused("has no tokenizer");
  EXPECT_FALSE(has_tokenizer(folder_));
  write("vocab.json", R"({"a": 0})");
  EXPECT_TRUE(has_tokenizer(folder_));
  expect_refused("has no merges.txt");
  write("merges.txt", "a\n");
  expect_refused("is not a pair");
  write("vocab.json", "[1]");
  expect_refused("is no object");
}

}  // namespace
}  // namespace heddle
