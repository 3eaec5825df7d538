#include "tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/error.h"
#include "base/rng.h"
#include "tiny_tokenizer.h"

namespace heddle {
namespace {

using Ids = std::vector<std::int32_t>;

Ids bytes_of(std::string_view text) {
  Ids ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

/// Token 256 and following: "ab", "abc", "bc".
TinyTokenizer abc() {
  TinyTokenizer tiny;
  tiny.merges = {{"a", "b"}, {"ab", "c"}, {"b", "c"}};
  return tiny;
}

std::string decode_streaming(const Tokenizer& tokenizer, const Ids& ids) {
  StreamDecoder decoder(tokenizer);
  std::string text;
  for (const auto id : ids) text += decoder.push(id);
  return text + decoder.finish();
}

TEST(Bpe, MergesTheLowestRankFirst) {
  EXPECT_EQ(abc().load().encode("abc"), Ids{257});
  EXPECT_EQ(abc().load().encode("bcab"), (Ids{258, 256}));
  TinyTokenizer other = abc();
  std::swap(other.merges[0], other.merges[2]);  // now "b c" (256) before "a b" (258)
  other.merges[1] = {"a", "bc"};
  EXPECT_EQ(other.load().encode("abc"), Ids{257});
}

TEST(Bpe, LongWordsAreEncodedLikeShortOnes) {
  TinyTokenizer tiny;
  tiny.merges = {{"a", "a"}, {"aa", "aa"}, {"b", "a"}, {"aaaa", "b"}};
  const auto tokenizer = tiny.load();
  // A word of n letters a is n/4 times "aaaa" and a rest, at every length.
  for (const int n : {7, 95, 96, 97, 98, 99, 100, 1000, 30001}) {
    Ids expected(static_cast<std::size_t>(n / 4), 257);
    if (n % 4 >= 2) expected.push_back(256);
    if (n % 2 == 1) expected.push_back('a');
    EXPECT_EQ(tokenizer.encode(std::string(static_cast<std::size_t>(n), 'a')), expected) << n;
  }
  // The same random words with and without letters around that take them over the limit.
  for (std::uint64_t i = 0; i < 200; ++i) {
    std::string word;
    for (std::uint64_t k = 0; k < 90; ++k) word += random_u64(i, k) % 2 == 0 ? 'a' : 'b';
    Ids expected = tokenizer.encode(word);
    const Ids tail = bytes_of("zzzzzzzzzzzzzzzzzzzz");
    expected.insert(expected.end(), tail.begin(), tail.end());
    ASSERT_EQ(tokenizer.encode(word + "zzzzzzzzzzzzzzzzzzzz"), expected) << word;
  }
}

TEST(Bpe, IgnoreMergesTakesWholeWordsFromTheVocabulary) {
  TinyTokenizer tiny = abc();
  tiny.extra_words = {"cab"};
  EXPECT_EQ(tiny.load().encode("cab"), (Ids{'c', 256}));
  tiny.ignore_merges = true;
  EXPECT_EQ(tiny.load().encode("cab"), Ids{259});
  EXPECT_EQ(tiny.load().encode("cab cabc"), (Ids{259, ' ', 'c', 257}));
}

TEST(Tokenizer, AcceptsMergesAsPairs) {
  Json json = abc().json();
  json["model"]["merges"] =
      Json::array({Json::array({"a", "b"}), Json::array({"ab", "c"}), Json::array({"b", "c"})});
  EXPECT_EQ(Tokenizer::from_json(json.dump(), "x").encode("abc"), Ids{257});
}

TEST(Tokenizer, ModelsWithoutATypeAreToldByWhatTheyHave) {
  const auto ids = [](const Json& model) {
    const Json file = {{"version", "1.0"}, {"added_tokens", Json::array()}, {"model", model}};
    return Tokenizer::from_json(file.dump(), "typeless.json").encode("ab");
  };
  const Json pieces = Json::parse(R"([["<unk>", 0.0], ["a", -2.0], ["ab", -1.0]])");
  EXPECT_EQ(ids({{"unk_id", 0}, {"vocab", pieces}}), (std::vector<std::int32_t>{2}));
  const Json words = {{"[UNK]", 0}, {"a", 1}, {"##b", 2}, {"ab", 3}};
  Json model = {{"unk_token", "[UNK]"}, {"vocab", words}};
  EXPECT_EQ(ids(model), (std::vector<std::int32_t>{3}));
  model["vocab"].erase("ab");
  EXPECT_EQ(ids(model), (std::vector<std::int32_t>{0}));  // words only
  model["continuing_subword_prefix"] = "##";
  model["max_input_chars_per_word"] = 100;
  EXPECT_EQ(ids(model), (std::vector<std::int32_t>{1, 2}));
  EXPECT_THROW(ids({{"vocab", words}}), Error);
}

TEST(Unigram, ScoresAreRoundedAsTheReferenceDoes) {
  // The sum of 7.386 and 8.09, as a double is written, is read as a neighbour of it.
  const Json pieces =
      Json::parse(R"([["<unk>", -20], ["a", -7.386], ["b", -8.09], ["ab", -15.475999999999999]])");
  const Json file = {{"model", {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", pieces}}}};
  EXPECT_EQ(Tokenizer::from_json(file.dump(), "x").encode("ab"), (Ids{1, 2}));
}

TEST(Tokenizer, AnyBytesRoundTrip) {
  const auto tokenizer = abc().load();
  for (std::uint64_t i = 0; i < 500; ++i) {
    std::string bytes, back;
    for (std::uint64_t k = 0; k < i % 60; ++k) bytes += static_cast<char>(random_u64(i, k));
    for (const auto id : tokenizer.encode(bytes)) back += tokenizer.token_bytes(id);
    ASSERT_EQ(back, bytes);
  }
}

TEST(Tokenizer, SplitsOnAddedTokensLeftmostLongest) {
  TinyTokenizer tiny = abc();
  tiny.added_tokens = {added_token(300, "<|a|>"), added_token(301, "<|a|>x"),
                       added_token(302, "\u4E2D")};
  const auto tokenizer = tiny.load();
  EXPECT_EQ(tokenizer.vocab_size(), 303);
  EXPECT_EQ(tokenizer.encode("ab<|a|>ab"), (Ids{256, 300, 256}));
  EXPECT_EQ(tokenizer.encode("<|a|>x<|a|>"), (Ids{301, 300}));
  EXPECT_EQ(tokenizer.encode("a\u4E2Db"), (Ids{'a', 302, 'b'}));
  EXPECT_EQ(tokenizer.encode("<|a|"), bytes_of("<|a|"));
  EXPECT_EQ(tokenizer.decode(Ids{300, 256, 302}), "<|a|>ab\u4E2D");
  EXPECT_EQ(tokenizer.decode(Ids{300, 256, 302}, true), "ab");
  EXPECT_EQ(tokenizer.id_of("<|a|>"), 300);
  EXPECT_EQ(tokenizer.id_of("abc"), 257);
  EXPECT_EQ(tokenizer.id_of("nothing"), std::nullopt);
}

TEST(Tokenizer, SpecialTokensInUntrustedTextArePlainTextOnRequest) {
  TinyTokenizer tiny = abc();
  tiny.added_tokens = {added_token(300, "<s>"), added_token(301, "ab", {{"special", false}})};
  tiny.added_tokens[1]["id"] = 256;
  const auto tokenizer = tiny.load();
  EXPECT_EQ(tokenizer.encode("<s>ab", {.parse_special = false}), (Ids{'<', 's', '>', 256}));
  EXPECT_EQ(tokenizer.encode("<s>ab"), (Ids{300, 256}));
}

TEST(Tokenizer, AddedTokensStripAndStandAloneAsTheySay) {
  TinyTokenizer tiny;
  tiny.added_tokens = {added_token(300, "LL", {{"lstrip", true}}),
                       added_token(301, "RR", {{"rstrip", true}}),
                       added_token(302, "WW", {{"single_word", true}})};
  const auto tokenizer = tiny.load();
  EXPECT_EQ(tokenizer.encode("a \t\u3000LL b"), (Ids{'a', 300, ' ', 'b'}));
  EXPECT_EQ(tokenizer.encode("a RR \u3000b"), (Ids{'a', ' ', 301, 'b'}));
  EXPECT_EQ(tokenizer.encode("RR  LL"), (Ids{301, 300}));
  EXPECT_EQ(tokenizer.encode("WW"), Ids{302});
  EXPECT_EQ(tokenizer.encode("(WW)"), (Ids{'(', 302, ')'}));
  EXPECT_EQ(tokenizer.encode("aWW"), bytes_of("aWW"));
  EXPECT_EQ(tokenizer.encode("WW_"), bytes_of("WW_"));
  EXPECT_EQ(tokenizer.encode("WW\u00E9"), bytes_of("WW\u00E9"));
}

TEST(Tokenizer, WhatATokenHasStrippedIsNoOtherToken) {
  TinyTokenizer tiny;
  tiny.added_tokens = {added_token(300, "RR", {{"rstrip", true}}),
                       added_token(301, "\n\n", {{"lstrip", true}, {"rstrip", true}}),
                       added_token(302, "\t")};
  const auto tokenizer = tiny.load();
  EXPECT_EQ(tokenizer.encode("\n\n\n\n\n"), Ids{301});
  EXPECT_EQ(tokenizer.encode("RR\n\n\n\na"), (Ids{300, 'a'}));
  // One that strips nothing is found there, and text goes on behind it.
  EXPECT_EQ(tokenizer.encode("RR \t a"), (Ids{300, 302, ' ', 'a'}));
}

TEST(Tokenizer, NormalizedTokensAreFoundAfterNormalisation) {
  TinyTokenizer tiny;
  tiny.normalizer = {{"type", "NFC"}};
  tiny.added_tokens = {added_token(300, "e\u0301", {{"normalized", true}}),
                       added_token(301, "o\u0301")};
  const auto tokenizer = tiny.load();
  EXPECT_EQ(tokenizer.encode("x\u00E9"), (Ids{'x', 300}));
  EXPECT_EQ(tokenizer.encode("xe\u0301"), (Ids{'x', 300}));
  EXPECT_EQ(tokenizer.encode("o\u0301"), Ids{301});
  EXPECT_EQ(tokenizer.encode("\u00F3"), bytes_of("\u00F3"));
}

TEST(Tokenizer, PrefixSpaceGoesBeforeEveryPieceWithoutOne) {
  TinyTokenizer tiny;
  tiny.pre_tokenizer["add_prefix_space"] = true;
  tiny.added_tokens = {added_token(300, "<s>")};
  const auto tokenizer = tiny.load();
  EXPECT_EQ(tokenizer.encode("a"), bytes_of(" a"));
  EXPECT_EQ(tokenizer.encode(" a"), bytes_of(" a"));
  EXPECT_EQ(tokenizer.encode("<s>a"), (Ids{300, ' ', 'a'}));
  EXPECT_EQ(tokenizer.encode(""), Ids{});
}

/// Between digits, and at `gone`, which is left out, before what cuts already.
void cut_at_digits_and(TinyTokenizer& tiny, const char* gone) {
  const Json split = {{"type", "Split"},
                      {"pattern", {{"String", gone}}},
                      {"behavior", "Removed"},
                      {"invert", false}};
  tiny.pre_tokenizer = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Digits"}, {"individual_digits", true}}, split, tiny.pre_tokenizer}}};
}

TEST(Tokenizer, SequencesOfPreTokenizersCutInTurn) {
  TinyTokenizer tiny;
  tiny.merges = {{"1", "2"}, {"a", "b"}, {"x", "a"}};
  EXPECT_EQ(tiny.load().encode("12ab"), (Ids{256, 257}));
  cut_at_digits_and(tiny, "x");
  EXPECT_EQ(tiny.load().encode("12xab"), (Ids{'1', '2', 257}));
}

TEST(Tokenizer, TemplatesSurroundTheTextOnRequest) {
  TinyTokenizer tiny;
  tiny.added_tokens = {added_token(300, "<s>"), added_token(301, "</s>")};
  const auto special = [](const char* name) {
    return Json{{"SpecialToken", {{"id", name}, {"type_id", 0}}}};
  };
  const Json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const Json single = {special("<s>"), text, special("</s>")};
  const Json tokens = {{"<s>", {{"id", "<s>"}, {"ids", {300}}, {"tokens", {"<s>"}}}},
                       {"</s>", {{"id", "</s>"}, {"ids", {301}}, {"tokens", {"</s>"}}}}};
  const Json step = {
      {"type", "TemplateProcessing"}, {"single", single}, {"special_tokens", tokens}};
  tiny.post_processor = {{"type", "Sequence"},
                         {"processors", Json::array({Json{{"type", "ByteLevel"}}, step})}};
  const auto tokenizer = tiny.load();
  EXPECT_EQ(tokenizer.encode("a", {.add_special = true}), (Ids{300, 'a', 301}));
  EXPECT_EQ(tokenizer.encode("", {.add_special = true}), (Ids{300, 301}));
  EXPECT_EQ(tokenizer.encode("a"), Ids{'a'});
}

TEST(Tokenizer, KeepsTheTextOfItsFile) {
  const std::string text = abc().json().dump(3);
  EXPECT_EQ(Tokenizer::from_json(text, "x").json(), text);
}

TEST(Tokenizer, ACacheUsedWithAnotherTokenizerStartsAfresh) {
  const auto first = abc().load(), second = TinyTokenizer().load();
  EncodeCache cache;
  Ids ids;
  first.encode("abc", {}, cache, ids);
  second.encode("abc", {}, cache, ids);
  first.encode("abc", {}, cache, ids);
  EXPECT_EQ(ids, (Ids{257, 'a', 'b', 'c', 257}));
}

TEST(Tokenizer, ACacheRemembersWhatHasNoTokens) {
  TinyTokenizer tiny;
  cut_at_digits_and(tiny, " ");
  const auto tokenizer = tiny.load();
  EncodeCache cache;
  Ids ids;  // of which no memory is there: an error where undefined behaviour is one
  tokenizer.encode(" ", {}, cache, ids);
  tokenizer.encode(" ", {}, cache, ids);
  EXPECT_EQ(ids, Ids{});
  tokenizer.encode("a", {}, cache, ids);
  EXPECT_EQ(ids, Ids{'a'});
}

TEST(Tokenizer, EncodesFromSeveralThreads) {
  const auto tokenizer = abc().load();
  const std::string text = "abc cab \u4E2D\u6587 123 abcabc";
  const auto expected = tokenizer.encode(text);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      EncodeCache cache;
      for (int i = 0; i < 200; ++i) {
        Ids ids;
        tokenizer.encode(text, {}, cache, ids);
        EXPECT_EQ(ids, expected);
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(Tokenizer, RefusesBytesItHasNoTokenFor) {
  Json json = TinyTokenizer().json();
  json["model"]["vocab"].erase("z");
  const auto tokenizer = Tokenizer::from_json(json.dump(), "x");
  EXPECT_EQ(tokenizer.encode("abc"), bytes_of("abc"));
  EXPECT_THROW(tokenizer.encode("jazz"), Error);
  EXPECT_EQ(tokenizer.decode(Ids{'a', 'z', 'b'}), "ab");  // ids may have holes
}

TEST(Decode, HoldsBackIncompleteCharacters) {
  const auto tokenizer = TinyTokenizer().load();
  StreamDecoder decoder(tokenizer);
  EXPECT_EQ(decoder.push(0xF0), "");
  EXPECT_EQ(decoder.push(0x9F), "");
  EXPECT_EQ(decoder.push(0x98), "");
  EXPECT_EQ(decoder.push(0x80), "\U0001F600");
  EXPECT_EQ(decoder.push('a'), "a");
  EXPECT_EQ(decoder.push(0xE4), "");
  EXPECT_EQ(decoder.push(0xB8), "");
  EXPECT_EQ(decoder.finish(), "\uFFFD");
  EXPECT_EQ(decoder.finish(), "");
}

TEST(Decode, ReplacesBrokenSequencesAsTheUnicodeStandardAdvises) {
  const auto tokenizer = TinyTokenizer().load();
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"a\xFF"
       "b",
       "a\uFFFDb"},
      {"\xE4\xB8"
       "a",
       "\uFFFDa"},
      {"\xF0\x9F\x98\xF0\x9F\x98\x80", "\uFFFD\U0001F600"},
      {"\xC0\x80", "\uFFFD\uFFFD"},
      {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},  // a surrogate
      {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
      {"\xE0\x9F\x80", "\uFFFD\uFFFD\uFFFD"},
      {"\xE4", "\uFFFD"},
      {"\x80\x80", "\uFFFD\uFFFD"}};
  for (const auto& [bytes, text] : cases) {
    EXPECT_EQ(tokenizer.decode(bytes_of(bytes)), text);
    EXPECT_EQ(decode_streaming(tokenizer, bytes_of(bytes)), text);
  }
}

TEST(Decode, StreamingEqualsDecodingAtOnce) {
  TinyTokenizer tiny;
  tiny.merges = {{"\xE4", "\xB8"}, {"\xAD", "\xE6"}, {"\xF0\x9F", "\x98"}};
  tiny.merges.insert(tiny.merges.begin(), {"\xF0", "\x9F"});
  const auto tokenizer = tiny.load();
  const std::string alphabet = "a\xE4\xB8\xAD\xE6\x96\x87\xF0\x9F\x98\x80\xC3\xED\xA0";
  for (std::uint64_t i = 0; i < 3000; ++i) {
    Ids ids;
    for (std::uint64_t k = 0; k < 12; ++k) {
      const auto pick = random_u64(i, k) % (alphabet.size() + 4);
      ids.push_back(pick < alphabet.size()
                        ? static_cast<unsigned char>(alphabet[pick])
                        : static_cast<std::int32_t>(256 + pick - alphabet.size()));
    }
    ASSERT_EQ(decode_streaming(tokenizer, ids), tokenizer.decode(ids))
        << testing::PrintToString(ids);
  }
}

TEST(Decode, SkipsIdsThatHaveNoToken) {
  const auto tokenizer = TinyTokenizer().load();
  EXPECT_EQ(tokenizer.decode(Ids{'a', -1, 256, 1 << 30, 'b'}), "ab");
}

}  // namespace
}  // namespace heddle
