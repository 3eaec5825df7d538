#include "tokenizer/pretokenizers/scan.h"

#include <gtest/gtest.h>

#include <array>

#include "base/error.h"
#include "base/rng.h"
#include "tokenizer/patterns/behavior.h"
#include "tokenizer/patterns/pattern.h"
#include "tokenizer/unicode/characters.h"
#include "tokenizer/unicode/normal_forms.h"

namespace heddle {
namespace {

using Pieces = std::vector<std::string>;

Pieces by_scanner(Scan scan, std::string_view text) {
  Pieces pieces;
  const char* p = text.data();
  const char* end = p + text.size();
  while (p < end) {
    const char* next = scan(p, end);
    pieces.emplace_back(p, next);
    p = next;
  }
  return pieces;
}

/// What a Split pre-tokenizer does, always by the engine.
class RegexSplit {
 public:
  struct Rule {
    std::string pattern = {};
    bool is_literal = false;
    SplitBehavior behavior = SplitBehavior::isolated;
    bool invert = false;
  };
  RegexSplit(Rule rule, const std::string& where)
      : rule_(std::move(rule)), pattern_(rule_.pattern, rule_.is_literal, where) {}

  void split(std::string_view text, FunctionRef<void(std::string_view)> sink) const {
    std::vector<TextPart> parts;
    pattern_.for_each_part(text, [&](std::string_view part, bool is_match) {
      parts.emplace_back(part, is_match != rule_.invert);
    });
    for_each_piece(parts, rule_.behavior, sink);
  }

 private:
  Rule rule_;
  Pattern pattern_;
};

Pieces by_regex(const RegexSplit& regex, std::string_view text) {
  Pieces pieces;
  regex.split(text, [&](std::string_view piece) { pieces.emplace_back(piece); });
  return pieces;
}

/// Texts of what the patterns tell apart: contractions in both cases, letters, numbers and spaces
/// of several widths, line breaks, marks, symbols.
std::string random_text(std::uint64_t key) {
  static const std::array<const char*, 44> kPieces = {
      "'",          "'s",         "'S",     "'re",    "'VE", "'ll", "'lL",    "'\u017F",   "a",
      "Z",          "\u00E9",     "\u4E2D", "\u0627", "1",   "7",   "\u0663", "\u00BD",    "\u2167",
      " ",          " ",          "  ",     "\t",     "\n",  "\r",  "\r\n",   "\u00A0",    "\u3000",
      "\u2028",     "\u0085",     "\u180E", "\u200B", ".",   "!",   "-",      "\u20AC",    "\u0301",
      "\U0001F600", "\U0001F1E9", "\u200D", "_",      "<|",  "x",   "st",     "\U0001D518"};
  std::string text;
  const auto length = random_u64(key, 0) % 24;
  for (std::uint64_t i = 0; i < length; ++i) {
    text += kPieces[random_u64(key, i + 1) % kPieces.size()];
  }
  return text;
}

void expect_equal_on_random_texts(Scan scan, std::string_view pattern) {
  const RegexSplit regex({.pattern = std::string(pattern)}, "test");
  for (std::uint64_t i = 0; i < 20000; ++i) {
    const std::string text = random_text(rng_key(7, i));
    ASSERT_EQ(by_scanner(scan, text), by_regex(regex, text)) << testing::PrintToString(text);
  }
}

/// All code points but surrogates, in texts of 256.
template <class Take>
void for_each_page(Take take) {
  for (char32_t page = 0; page < 0x110000; page += 256) {
    if (page >= 0xD800 && page < 0xE000) continue;
    take(page);
  }
}

TEST(Scan, PatternsAndScannersHaveOneUnicode) {
  const RegexSplit gpt2({.pattern = std::string(kGpt2Pattern)}, "test");
  const RegexSplit llama3({.pattern = std::string(kLlama3Pattern)}, "test");
  for_each_page([&](char32_t page) {
    std::string text;
    for (char32_t c = page; c < page + 256; ++c) {
      text += 'a';
      append_utf8(c, text);
      text += "1 ";
    }
    ASSERT_EQ(by_scanner(scan_gpt2, text), by_regex(gpt2, text)) << static_cast<int>(page);
    ASSERT_EQ(by_scanner(scan_llama3, text), by_regex(llama3, text)) << static_cast<int>(page);
  });
}

TEST(Scan, PropertiesInPatternsAreTheClassesOfTheTable) {
  const std::vector<std::pair<const char*, CharClass>> properties = {
      {"\\p{L}", CharClass::letter}, {"\\p{N}", CharClass::number}, {"\\s", CharClass::space}};
  for (const auto& [pattern, kind] : properties) {
    for (const bool inverse : {false, true}) {
      const std::string written = inverse ? fmt::format("[^{}]", pattern) : pattern;
      const RegexSplit regex({.pattern = written, .behavior = SplitBehavior::removed}, "test");
      for_each_page([&](char32_t page) {
        std::string text, expected, left;
        for (char32_t c = page; c < page + 256; ++c) {
          append_utf8(c, text);
          if ((class_of(c) == kind) == inverse) append_utf8(c, expected);
        }
        regex.split(text, [&](std::string_view piece) { left += piece; });
        ASSERT_EQ(left, expected) << pattern << " on page " << static_cast<int>(page);
      });
    }
  }
}

TEST(Scan, Gpt2EqualsItsPattern) { expect_equal_on_random_texts(scan_gpt2, kGpt2Pattern); }
TEST(Scan, Llama3EqualsItsPattern) { expect_equal_on_random_texts(scan_llama3, kLlama3Pattern); }
TEST(Scan, Qwen2EqualsItsPattern) { expect_equal_on_random_texts(scan_qwen2, kQwen2Pattern); }
TEST(Scan, ClipEqualsItsPattern) { expect_equal_on_random_texts(scan_clip, kClipPattern); }
TEST(Scan, NumberRunsEqualTheirPattern) {
  expect_equal_on_random_texts(scan_number_runs, R"(\p{N}+)");
}
TEST(Scan, SingleNumbersEqualTheirPattern) {
  expect_equal_on_random_texts(scan_single_numbers, R"(\p{N})");
}

TEST(Scan, TakesAnyBytesAndAlwaysAdvances) {
  for (std::uint64_t i = 0; i < 5000; ++i) {
    std::string bytes;
    for (std::uint64_t k = 0; k < i % 40; ++k) bytes += static_cast<char>(random_u64(i, k));
    for (const Scan scan : {scan_gpt2, scan_llama3, scan_qwen2, scan_number_runs}) {
      std::string joined;
      for (const auto& piece : by_scanner(scan, bytes)) {
        ASSERT_FALSE(piece.empty());
        joined += piece;
      }
      ASSERT_EQ(joined, bytes);
    }
  }
}

TEST(Scan, KnowsThePatternsByTheirText) {
  EXPECT_EQ(scanner_for(kGpt2Pattern), scan_gpt2);
  EXPECT_EQ(scanner_for(kLlama3Pattern), scan_llama3);
  EXPECT_EQ(scanner_for(R"(\p{N}+)"), nullptr);
}

TEST(RegexSplit, BehaviorsDecideWhereDelimitersGo) {
  const auto split = [](SplitBehavior behavior, bool invert = false) {
    const RegexSplit regex({.pattern = "-", .behavior = behavior, .invert = invert}, "test");
    return by_regex(regex, "the-final--countdown");
  };
  EXPECT_EQ(split(SplitBehavior::isolated), (Pieces{"the", "-", "final", "-", "-", "countdown"}));
  EXPECT_EQ(split(SplitBehavior::removed), (Pieces{"the", "final", "countdown"}));
  EXPECT_EQ(split(SplitBehavior::removed, true), (Pieces{"-", "-", "-"}));
  EXPECT_EQ(split(SplitBehavior::contiguous), (Pieces{"the", "-", "final", "--", "countdown"}));
  EXPECT_EQ(split(SplitBehavior::merged_with_previous),
            (Pieces{"the-", "final-", "-", "countdown"}));
  EXPECT_EQ(split(SplitBehavior::merged_with_next), (Pieces{"the", "-final", "-", "-countdown"}));
}

TEST(RegexSplit, LiteralPatternsAreNotRegularExpressions) {
  const RegexSplit regex({.pattern = "a.", .is_literal = true}, "test");
  EXPECT_EQ(by_regex(regex, "aba.b"), (Pieces{"ab", "a.", "b"}));
}

TEST(RegexSplit, EmptyMatchesCutAndAdvance) {
  const RegexSplit regex({.pattern = "x*"}, "test");
  EXPECT_EQ(by_regex(regex, "\u00E9xx\u4E2D"), (Pieces{"\u00E9", "xx", "\u4E2D"}));
  // None is found right behind a match.
  const RegexSplit merging({.pattern = "x*", .behavior = SplitBehavior::merged_with_next}, "test");
  EXPECT_EQ(by_regex(merging, "axxb"), (Pieces{"a", "xxb"}));
}

TEST(RegexSplit, InvalidBytesBecomePiecesOfTheirOwn) {
  const RegexSplit regex({.pattern = R"(\p{L}+)"}, "test");
  EXPECT_EQ(by_regex(regex, "ab\xFF\xC3zz"), (Pieces{"ab", "\xFF", "\xC3", "zz"}));
}

TEST(RegexSplit, RefusesByNameWhatThisEngineWouldReadDifferently) {
  for (const char* pattern : {R"(\h+)",
                              R"([a\W])",
                              R"(\bx)",
                              R"([a&&b])",
                              R"([a[^bc]])",
                              R"([[:alpha:]])",
                              R"([a[]])",
                              R"((?m:x))",
                              R"((?<name>x))",
                              R"((*ACCEPT))",
                              R"(\1)",
                              R"(\pL)",
                              R"(\p{L)",
                              R"(\x{41)",
                              "(?i:\u00DF)",
                              "(?i:(a|[\uFB01]))",
                              "|{1,2}+",
                              "(",
                              "[",
                              "\\",
                              ""}) {
    try {
      RegexSplit({.pattern = pattern}, "file.json: pre_tokenizer.pattern");
      ADD_FAILURE() << pattern << " accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::data);
      EXPECT_TRUE(e.message().starts_with("file.json: pre_tokenizer.pattern")) << e.message();
    }
  }
}

TEST(RegexSplit, ClassesInsideClassesAddTheirCharacters) {
  const RegexSplit regex({.pattern = R"([^(\s|[.,!])]+)"}, "test");
  EXPECT_EQ(by_regex(regex, "a]b.c d|"), (Pieces{"a]b", ".", "c", " ", "d", "|"}));
}

TEST(RegexSplit, WordCharactersAreThoseOfTheReference) {
  const RegexSplit regex({.pattern = R"(\w+)"}, "test");
  EXPECT_EQ(by_regex(regex, "a_1\u0301\u24B6\u00BD\u2460-"),
            (Pieces{"a_1\u0301\u24B6\u00BD", "\u2460-"}));
}

Pieces cut_by(const std::string& pattern, std::string_view text) {
  return by_regex(RegexSplit({.pattern = pattern}, "test"), text);
}

TEST(RegexSplit, ScriptsAreOfTheirOwnCharactersOnly) {
  const char* text = "中文。日本語、テスト";
  const Pieces han = {"中文", "。", "日本語", "、テスト"};
  EXPECT_EQ(cut_by(R"(\p{Han}+)", text), han);
  EXPECT_EQ(cut_by(R"([\p{hani}]+)", text), han);
  EXPECT_EQ(cut_by(R"(\P{^Han}+)", text), han);
  EXPECT_EQ(cut_by(R"([^\p{^Han}]+)", text), han);
  EXPECT_EQ(cut_by(R"(\P{Han}+)", "a、中b"), (Pieces{"a、", "中", "b"}));
  EXPECT_EQ(cut_by(R"(\p{Katakana}+)", "スーパーカー"),
            (Pieces{"ス", "ー", "パ", "ー", "カ", "ー"}));
  EXPECT_EQ(cut_by(R"(\p{Devanagari}+)", "हिन्दी।"), (Pieces{"हिन्दी", "।"}));
  EXPECT_EQ(cut_by(R"(\p{Common}+)", "a、b"), (Pieces{"a", "、", "b"}));
}

TEST(RegexSplit, APlusBehindAnIntervalRepeatsIt) {
  EXPECT_EQ(cut_by(R"(\p{N}{1,3}+)", "1234567"), Pieces{"1234567"});
  EXPECT_EQ(cut_by(R"((?:ab){1,2}+c)", "ababcababc"), (Pieces{"ababc", "ababc"}));
  EXPECT_EQ(cut_by(R"([ab]{1,2}+)", "abab-ab"), (Pieces{"abab", "-", "ab"}));
  EXPECT_EQ(cut_by("\u00E9{1,2}+", "\u00E9\u00E9\u00E9a"), (Pieces{"\u00E9\u00E9\u00E9", "a"}));
  EXPECT_EQ(cut_by(R"(\x{61}{2}+)", "aaaaa"), (Pieces{"aaaa", "a"}));
  EXPECT_EQ(cut_by("a{1,2}+?", "aaaaa"), (Pieces{"aa", "aa", "a"}));
  EXPECT_EQ(cut_by("a{2}?", "aaaaa"), (Pieces{"aa", "aa", "a"}));
  EXPECT_EQ(cut_by("a++b", "aab"), Pieces{"aab"});
}

TEST(RegexSplit, IntervalsNeedNoLeast) {
  EXPECT_EQ(cut_by("a{,2}", "aaab"), (Pieces{"aa", "a", "b"}));
  EXPECT_EQ(cut_by("a{,}", "aaa{,}"), (Pieces{"aa", "a{,}"}));
}

TEST(RegexSplit, WordCharactersInsideClassesAreNoNumbersLikeHalves) {
  EXPECT_EQ(cut_by(R"([\w]+)", "a\u00BDb\u24B6"), (Pieces{"a", "\u00BD", "b\u24B6"}));
  EXPECT_EQ(cut_by(R"([^\w]+)", "a\u00BDb"), (Pieces{"a", "\u00BD", "b"}));
}

TEST(RegexSplit, StopsPatternsThatExplode) {
  const RegexSplit regex({.pattern = R"((a+)+[bc])"}, "test");
  EXPECT_THROW(by_regex(regex, std::string(64, 'a')), Error);
}

TEST(Unicode, ComposesToNfc) {
  const auto nfc = [](std::string_view text) { return to_normal_form(text, NormalForm::nfc); };
  EXPECT_EQ(nfc("cafe\u0301 x"), "caf\u00E9 x");
  EXPECT_EQ(nfc("\u1112\u1161\u11AB"), "\uD55C");
  EXPECT_EQ(nfc("plain"), "plain");
  EXPECT_EQ(nfc("e\xFF\u0301"), "e\xFF\u0301");
}

TEST(Unicode, FlagsOfAsciiAreThoseOfTheTable) {
  for (char32_t c = 0; c < 128; ++c) {
    for (const CharFlag flag :
         {CharFlag::pattern_word, CharFlag::word, CharFlag::punctuation, CharFlag::accent,
          CharFlag::bert_accent, CharFlag::bert_unclean, CharFlag::pictographic}) {
      EXPECT_EQ(has(c, flag), unicode_detail::has_in_table(c, flag))
          << static_cast<std::uint32_t>(c) << " flag " << static_cast<int>(flag);
    }
  }
}

TEST(Unicode, KnowsTheWhiteSpaceProperty) {
  for (const char32_t c : {0x9, 0xD, 0x20, 0x85, 0xA0, 0x1680, 0x200A, 0x2029, 0x202F, 0x3000}) {
    EXPECT_EQ(class_of(c), CharClass::space) << static_cast<std::uint32_t>(c);
  }
  for (const char32_t c : {0x1C, 0x180E, 0x200B, 0xFEFF}) {
    EXPECT_EQ(class_of(c), CharClass::other) << static_cast<std::uint32_t>(c);
  }
}

}  // namespace
}  // namespace heddle
