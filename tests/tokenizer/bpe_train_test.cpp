#include "tokenizer/bpe_train.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "base/rng.h"
#include "tiny_tokenizer.h"
#include "tokenizer/word_counts.h"

namespace heddle {
namespace {

using Ids = std::vector<std::int32_t>;

BpeTrainResult train(std::string_view text, BpeTrainOptions options) {
  const std::array<std::string_view, 1> texts = {text};
  return train_bpe(texts, options);
}

std::string random_words(std::int64_t bytes) {
  std::string text;
  for (std::uint64_t i = 0; static_cast<std::int64_t>(text.size()) < bytes; ++i) {
    const auto word = random_u64(1, i) % 997;
    for (std::uint64_t k = 0; k < 2 + word % 6; ++k) {
      text += static_cast<char>('a' + random_u64(word, k) % 26);
    }
    text += i % 11 == 0 ? ".\n" : " ";
  }
  return text;
}

TEST(BpeTrain, LearnsTheKnownMergesOfASmallText) {
  // Words: "low" 1, " low" 4, " lower" 2, " newest" 6, " widest" 3 (Sennrich et al. 2016, with
  // spaces). e-s and s-t have 9 each: e < s
  // decides; then es-t with 9, l-o and lo-w with 7, and of those with 6 the smallest, e-w.
  std::string text = "low";
  for (int i = 0; i < 4; ++i) text += " low";
  for (int i = 0; i < 2; ++i) text += " lower";
  for (int i = 0; i < 6; ++i) text += " newest";
  for (int i = 0; i < 3; ++i) text += " widest";
  const auto result = train(text, {.vocab_size = 256 + 5});
  const Json json = parse_json(result.json, "trained");
  EXPECT_EQ(result.vocab_size, 261);
  EXPECT_EQ(result.words, 5);
  EXPECT_EQ(json["model"]["merges"], (Json{"e s", "es t", "l o", "lo w", "e w"}));
}

TEST(BpeTrain, SpecialTokensComeFirstAndAreNeverSpelledByText) {
  std::string text;
  for (int i = 0; i < 50; ++i) text += "<|end|>EOS EOS stop";
  const auto result =
      train(text, {.vocab_size = 600, .special_tokens = {"<|end|>", "EOS", "\u0120stop"}});
  const auto tokenizer = Tokenizer::from_json(result.json, "trained");
  EXPECT_EQ(tokenizer.id_of("<|end|>"), 0);
  EXPECT_EQ(tokenizer.encode("<|end|>"), Ids{0});
  EXPECT_EQ(tokenizer.encode("!"), Ids{3});
  for (const auto id : tokenizer.encode("EOS<|end|> stop", {.parse_special = false})) {
    EXPECT_GE(id, 3);
  }
  EXPECT_EQ(parse_json(result.json, "x").dump().find("\"| e\""), std::string::npos);
}

TEST(BpeTrain, DoesNotDependOnThreads) {
  const std::string text = random_words(5'000'000);
  for (const auto style : {PretokenizerStyle::gpt2, PretokenizerStyle::llama3}) {
    const auto one = train(text, {.vocab_size = 500, .pretokenizer = style, .threads = 1});
    for (const int threads : {2, 5}) {
      EXPECT_EQ(train(text, {.vocab_size = 500, .pretokenizer = style, .threads = threads}).json,
                one.json);
    }
  }
}

TEST(BpeTrain, CuttingIntoChunksDoesNotChangeTheWords) {
  std::string text = random_words(2'500'000);
  for (std::size_t at = 0; at < text.size(); at += 9973) text.replace(at, 4, "\n \t ");
  for (const Scan scan : {scan_gpt2, scan_llama3}) {
    std::map<std::string, std::int64_t> expected;
    for (const char *p = text.data(), *end = p + text.size(); p < end;) {
      const char* next = scan(p, end);
      ++expected[std::string(p, next)];
      p = next;
    }
    const std::array<std::string_view, 1> texts = {text};
    const auto words = count_words(texts, {.scan = scan, .threads = 2});
    EXPECT_TRUE(std::equal(
        words.begin(), words.end(), expected.begin(), expected.end(),
        [](const auto& a, const auto& b) { return a.first == b.first && a.second == b.second; }));
  }
}

TEST(BpeTrain, EncodesItsTextWithTheTokensItLearned) {
  const std::string text = random_words(200'000) + "caf\u00E9 \u4E2D\u6587 don't 12345\n\n";
  for (const auto style : {PretokenizerStyle::gpt2, PretokenizerStyle::llama3}) {
    const auto result = train(text, {.vocab_size = 2000, .pretokenizer = style});
    const auto tokenizer = Tokenizer::from_json(result.json, "trained");
    const auto ids = tokenizer.encode(text);
    EXPECT_EQ(tokenizer.vocab_size(), result.vocab_size);
    EXPECT_EQ(tokenizer.decode(ids), text);
    EXPECT_LT(ids.size(), text.size() / 2);
  }
}

TEST(BpeTrain, StopsAtTheMinimumFrequency) {
  EXPECT_EQ(train("ab ab ab cd", {.vocab_size = 1000, .min_frequency = 3}).vocab_size, 257);
  EXPECT_EQ(train("ab ab ab cd", {.vocab_size = 1000, .min_frequency = 4}).vocab_size, 256);
  EXPECT_EQ(train("aaa aaaa", {.vocab_size = 1000, .min_frequency = 1}).vocab_size, 260);
}

TEST(BpeTrain, RefusesOptionsThatMakeNoSense) {
  const auto code = [](std::string_view text, const BpeTrainOptions& options) {
    try {
      train(text, options);
    } catch (const Error& e) {
      return e.code();
    }
    return ErrorCode::internal;
  };
  EXPECT_EQ(code("ab", {.vocab_size = 255}), ErrorCode::usage);
  EXPECT_EQ(code("ab", {.vocab_size = 256, .special_tokens = {"<s>"}}), ErrorCode::usage);
  EXPECT_EQ(code("ab", {.vocab_size = std::int64_t{1} << 40}), ErrorCode::usage);
  EXPECT_EQ(code("ab", {.vocab_size = 300, .special_tokens = {""}}), ErrorCode::usage);
  EXPECT_EQ(code("ab", {.vocab_size = 300, .special_tokens = {"a"}}), ErrorCode::usage);
  EXPECT_EQ(code("ab", {.vocab_size = 300, .special_tokens = {"<s>", "<s>"}}), ErrorCode::usage);
  EXPECT_EQ(code("ab", {.vocab_size = 300, .special_tokens = {"\xFF"}}), ErrorCode::usage);
  EXPECT_EQ(code("", {.vocab_size = 300}), ErrorCode::data);
}

}  // namespace
}  // namespace heddle
