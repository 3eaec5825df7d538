#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"
#include "tiny_tokenizer.h"

namespace heddle {
namespace {

/// Expects Error(data) whose message starts with the file and contains `part`.
void expect_refused(const std::string& text, const std::string& part) {
  try {
    Tokenizer::from_json(text, "bad.json");
    ADD_FAILURE() << "accepted; expected a message with: " << part;
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::data);
    EXPECT_TRUE(e.message().starts_with("bad.json")) << e.message();
    EXPECT_NE(e.message().find(part), std::string::npos) << e.message();
  }
}

void expect_refused(const std::function<void(Json&)>& spoil, const std::string& part) {
  TinyTokenizer tiny;
  tiny.merges = {{"a", "b"}};
  Json json = tiny.json();
  spoil(json);
  expect_refused(json.dump(), part);
}

TEST(BadTokenizerJson, IsRefusedWhenMalformed) {
  const std::string good = TinyTokenizer().json().dump();
  Tokenizer::from_json(good, "good.json");
  expect_refused(std::string(), "bad.json:1:1");
  expect_refused(std::string("[]"), "bad.json: not an object");
  expect_refused(std::string("{}"), "model is missing");
  expect_refused(std::string("{\"model\":\n\xFF\"\"}"), "bad.json:2:");
  expect_refused(std::string(100000, '['), "nested deeper");
  expect_refused("{\"model\":" + std::string(100000, '{'), "bad.json");
  for (std::size_t n = 1; n < good.size(); n += 7) {
    EXPECT_THROW(Tokenizer::from_json(good.substr(0, n), "cut.json"), Error) << n;
  }
}

TEST(BadTokenizerJson, IsRefusedForABadVocabulary) {
  expect_refused([](Json& j) { j["model"]["vocab"] = Json::object(); }, "model.vocab is empty");
  expect_refused([](Json& j) { j["model"].erase("vocab"); }, "model.vocab is missing");
  expect_refused([](Json& j) { j["model"]["vocab"] = Json::array(); }, "model.vocab is missing");
  expect_refused([](Json& j) { j["model"]["vocab"]["a"] = "7"; }, "not an integer");
  expect_refused([](Json& j) { j["model"]["vocab"]["a"] = 7.5; }, "not an integer");
  expect_refused([](Json& j) { j["model"]["vocab"]["a"] = Json::array({1}); }, "not an integer");
  expect_refused([](Json& j) { j["model"]["vocab"]["a"] = Json::object(); }, "not an integer");
  expect_refused([](Json& j) { j["model"]["vocab"]["a"] = nullptr; }, "not an integer");
  expect_refused([](Json& j) { j["model"]["vocab"]["a"] = 98; }, "id 98 given twice");
  expect_refused([](Json& j) { j["model"]["vocab"]["a"] = -1; }, "no token id");
  expect_refused([](Json& j) { j["model"]["vocab"]["a"] = 4000000000000; }, "no token id");
  expect_refused([](Json& j) { j["model"]["vocab"]["a"] = 18446744073709551615U; }, "no token id");
  expect_refused(R"({"model":{"type":"BPE","vocab":{"a":0,"a":1},"merges":[]}})", "given twice");
  expect_refused(R"({"model":{"type":"BPE","vocab":{"a":0},"vocab":{"a":0},"merges":[]}})",
                 "given twice");
}

TEST(BadTokenizerJson, IsRefusedForBadMerges) {
  const auto with = [](Json merges) {
    return [merges](Json& j) { j["model"]["merges"] = merges; };
  };
  expect_refused([](Json& j) { j["model"].erase("merges"); }, "model.merges is missing");
  expect_refused(with(7), "model.merges is missing");
  expect_refused(with({"a q", "a b"}), "model.merges[0]: token \"aq\"");
  expect_refused(with({"a b", "ab \u4E2D"}), "model.merges[1]: token \"\u4E2D\"");
  expect_refused(with({"ab"}), "model.merges[0] is not a pair");
  expect_refused(with({"a b c"}), "model.merges[0] is not a pair");
  expect_refused(with(Json::array({"a b", Json::array({"a"})})), "model.merges[1] is not a pair");
  expect_refused(with(Json::array({Json::array({"a", "b", "c"})})),
                 "model.merges[0] is not a pair");
  expect_refused(with(Json::array({Json::array({"a", 1})})), "is not a pair");
  expect_refused(with(Json::array({Json::array({"a", Json::array({"b"})})})), "is not a pair");
  expect_refused(with(Json::array({Json::array({Json::array({"a", "b"}), "c"})})), "is not a pair");
  expect_refused(with({nullptr}), "is not a pair");
}

TEST(BadTokenizerJson, IsRefusedByNameForWhatIsNotSupported) {
  const auto type = [](const char* name) { return Json{{"type", name}}; };
  expect_refused([&](Json& j) { j["model"]["type"] = "Morphemes"; }, "model type Morphemes");
  expect_refused([&](Json& j) { j["model"]["dropout"] = 0.1; }, "dropout");
  expect_refused([&](Json& j) { j["normalizer"] = type("Rot13"); }, "normalizer Rot13");
  expect_refused(
      [&](Json& j) {
        j["normalizer"] = {{"type", "Sequence"}, {"normalizers", {type("NFC"), type("Rot13")}}};
      },
      "normalizer.normalizers[1]: normalizer Rot13");
  expect_refused([&](Json& j) { j["pre_tokenizer"] = type("UnicodeScripts"); },
                 "pre-tokenizer UnicodeScripts");
  expect_refused([&](Json& j) { j["post_processor"] = type("Shuffle"); }, "post-processor Shuffle");
  expect_refused([&](Json& j) { j["decoder"] = type("CTC"); }, "decoder CTC");
}

TEST(BadTokenizerJson, IsRefusedForStagesThatLackWhatTheyNeed) {
  expect_refused([](Json& j) { j["model"]["type"] = "WordPiece"; }, "token \"[UNK]\" is not");
  expect_refused([](Json& j) { j["model"]["type"] = "WordLevel"; }, "token \"<unk>\" is not");
  expect_refused([](Json& j) { j["model"]["type"] = "Unigram"; }, "vocab is missing or not a list");
  expect_refused([](Json& j) { j["model"]["unk_token"] = "none"; }, "token \"none\" is not");
  const auto unigram = [](Json vocab, Json unknown) {
    return [=](Json& j) {
      j["model"] = {{"type", "Unigram"}, {"unk_id", unknown}, {"vocab", vocab}};
    };
  };
  expect_refused(unigram(Json::array(), 0), "model.vocab is empty");
  expect_refused(unigram(Json::array({Json::array({"a", -1.0})}), 1),
                 "unk_id = 1 is not in the vocabulary");
  expect_refused(unigram(Json::array({Json::array({"a", "b"})}), 0),
                 "model.vocab[0] is not a pair");
  expect_refused(unigram(Json::array({Json::array({"a", 1, 2})}), 0),
                 "model.vocab[0] is not a pair");
  expect_refused(unigram(Json::array({Json::array({"a"})}), 0), "model.vocab[0] is not a pair");
  expect_refused(unigram(Json::array({Json::object()}), 0), "model.vocab[0] is not a pair");
  expect_refused(unigram(Json::array({"a"}), 0), "model.vocab[0] is not a pair");

  const auto stage = [](const char* key, Json value) { return [=](Json& j) { j[key] = value; }; };
  expect_refused(stage("pre_tokenizer", {{"type", "Metaspace"}}), "replacement is missing");
  expect_refused(stage("pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "ab"}}),
                 "replacement is not one character");
  expect_refused(stage("pre_tokenizer",
                       {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "last"}}),
                 "prepend_scheme last");
  expect_refused(stage("pre_tokenizer", {{"type", "FixedLength"}, {"length", 0}}), "length = 0");
  expect_refused(stage("pre_tokenizer", {{"type", "Punctuation"}, {"behavior", "Doubled"}}),
                 "behavior Doubled");
  expect_refused(stage("normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", "A?"}}),
                 "is not base64");
  expect_refused(stage("normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", "////"}}),
                 "no compiled rules");
  expect_refused(
      stage("normalizer", {{"type", "Replace"}, {"content", ""}, {"pattern", {{"Regex", "("}}}}),
      "pattern not understood");
  expect_refused(stage("post_processor", {{"type", "BertProcessing"}}), "cls is missing");
  expect_refused(stage("post_processor", {{"type", "BertProcessing"}, {"cls", {"x", 5000}}}),
                 "id 5000 is not in the vocabulary");
  expect_refused(stage("decoder", {{"type", "Strip"}, {"content", ""}}), "is not one character");
}

TEST(BadTokenizerJson, IsRefusedForATokenOfWhichNothingIsLeft) {
  const auto strip = [](bool is_normalized) {
    return [=](Json& j) {
      j["normalizer"] = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}};
      j["added_tokens"] = {added_token(300, "\n ", {{"normalized", is_normalized}})};
    };
  };
  expect_refused(strip(true), R"(leaves nothing of the added token "\n ")");
  TinyTokenizer tiny;
  Json json = tiny.json();
  strip(false)(json);
  EXPECT_NO_THROW(Tokenizer::from_json(json.dump(), "good.json"));
}

TEST(BadTokenizerJson, WhatConcernsBatchesIsIgnored) {
  Json json = TinyTokenizer().json();
  json["truncation"] = {{"max_length", 2}};
  json["padding"] = Json::object();
  EXPECT_EQ(Tokenizer::from_json(json.dump(), "tiny.json").encode("abc").size(), 3U);
}

TEST(BadTokenizerJson, IsRefusedForWrongTypes) {
  expect_refused([](Json& j) { j["model"] = 1; }, "model is not an object");
  expect_refused([](Json& j) { j["model"]["type"] = 3; }, "type is not a string");
  expect_refused([](Json& j) { j["model"]["ignore_merges"] = "yes"; }, "ignore_merges");
  expect_refused([](Json& j) { j["added_tokens"] = Json::object(); }, "added_tokens is not a list");
  expect_refused([](Json& j) { j["added_tokens"] = {5}; }, "added_tokens[0] is not an object");
  expect_refused([](Json& j) { j["added_tokens"] = {{{"id", 1}}}; }, "content is missing");
  expect_refused([](Json& j) { j["added_tokens"] = {added_token(-2, "x")}; }, "no token id");
  expect_refused([](Json& j) { j["added_tokens"] = {added_token(1 << 30, "x")}; }, "no token id");
  expect_refused([](Json& j) { j["added_tokens"] = {added_token(97, "xyz")}; }, "another token");
  expect_refused([](Json& j) { j["added_tokens"] = {added_token(300, "ab")}; }, "id 256 for it");
  expect_refused([](Json& j) { j["added_tokens"] = {added_token(300, "")}; }, "content is empty");
  expect_refused(
      [](Json& j) {
        j["added_tokens"] = {added_token(300, "x1"), added_token(300, "x2")};
      },
      "another token");
  expect_refused(
      [](Json& j) {
        j["added_tokens"] = {added_token(300, "x1"), added_token(301, "x1")};
      },
      "given twice");
  expect_refused([](Json& j) { j["normalizer"] = "NFC"; }, "normalizer is not an object");
  expect_refused([](Json& j) { j["pre_tokenizer"] = {{"type", "Split"}}; }, "pattern is missing");
  expect_refused(
      [](Json& j) {
        j["post_processor"] = {{"type", "TemplateProcessing"}};
      },
      "single is missing");
  expect_refused(
      [](Json& j) {
        j["post_processor"] = {{"type", "TemplateProcessing"},
                               {"single", {{{"SpecialToken", {{"id", "<s>"}}}}}},
                               {"special_tokens", {{"<s>", {{"ids", {100000}}}}}}};
      },
      "not in the vocabulary");
}

TEST(BadTokenizerJson, AMissingFileIsNamed) {
  try {
    Tokenizer::load("/nowhere/tokenizer.json");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::data);
    EXPECT_NE(e.message().find("/nowhere/tokenizer.json"), std::string::npos);
  }
}

}  // namespace
}  // namespace heddle
