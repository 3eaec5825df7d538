#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace heddle {

/// All that Heddle knows of Unicode comes from the tables (*.inc) beside this file, which
/// scripts/make_unicode_tables.py writes: categories and graphemes of Unicode 16, and what the
/// reference library makes of each code point where its own tables are older.

// clang-format off
/// General categories, in the order of the table.
enum class Category : std::uint8_t {
  cn, lu, ll, lt, lm, lo, mn, mc, me, nd, nl, no, pc, pd, ps, pe, pi, pf, po, sm, sc, sk, so, zs,
  zl, zp, cc, cf, cs, co
};
// clang-format on

/// What pre-tokenizer patterns ask of a character: general category L*, general category N*, the
/// White_Space property, or none of them. Bytes that are not valid UTF-8 are `other`.
enum class CharClass : std::uint8_t { other, letter, number, space };

/// What single stages ask, in the order of the table's bits.
enum class CharFlag : std::uint8_t {
  pattern_word,  ///< `\w` of patterns (Oniguruma)
  word,          ///< `\w` of Whitespace and of single words: Alphabetic, M*, Nd, Pc, joiners
  punctuation,   ///< what Punctuation and BertPreTokenizer cut at
  accent,        ///< what StripAccents removes
  bert_accent,   ///< what BertNormalizer removes as an accent
  bert_unclean,  ///< what BertNormalizer removes when it cleans
  pictographic   ///< Extended_Pictographic
};

/// Grapheme_Cluster_Break and Indic_Conjunct_Break, in the order of the table.
enum class GraphemeBreak : std::uint8_t {
  other,
  cr,
  lf,
  control,
  extend,
  zwj,
  regional,
  prepend,
  spacing,
  l,
  v,
  t,
  lv,
  lvt
};
enum class ConjunctBreak : std::uint8_t { none, consonant, extend, linker };

struct CodePoint {
  char32_t value;
  int length;  ///< bytes taken; 1 when invalid
};
constexpr char32_t kInvalidCodePoint = 0xFFFFFFFF;

/// The code point at `p` (p < end). A byte that starts no valid sequence gives kInvalidCodePoint.
CodePoint decode_utf8(const char* p, const char* end);
void append_utf8(char32_t code_point, std::string& out);
/// Where the last character of `text` (not empty) starts.
std::size_t last_character(std::string_view text);

/// Of kInvalidCodePoint: `cn`, `other`, no flag, and `control`, which joins nothing.
Category category_of(char32_t code_point);
CharClass class_of(char32_t code_point);
/// The bytes of characters of class `space` that `text` begins with.
std::size_t leading_white_space(std::string_view text);
inline bool has(char32_t code_point, CharFlag flag);
GraphemeBreak grapheme_break(char32_t code_point);
ConjunctBreak conjunct_break(char32_t code_point);
/// Appends the full lowercase mapping of one character, whatever surrounds it.
void append_lowercase(char32_t code_point, std::string& out);

/// The capital whose lowercase mapping this is, or the character itself.
char32_t uppercase_of(char32_t code_point);

/// Calls `take(char32_t, bytes)` for each character of `text` in order.
template <class Take>
void for_each_character(std::string_view text, Take take) {
  const char* const end = text.data() + text.size();
  for (const char* p = text.data(); p < end;) {
    const auto lead = static_cast<unsigned char>(*p);
    const CodePoint c = lead < 0x80 ? CodePoint{lead, 1} : decode_utf8(p, end);
    take(c.value, std::string_view(p, static_cast<std::size_t>(c.length)));
    p += c.length;
  }
}

namespace unicode_detail {
constexpr std::array<CharClass, 128> ascii_classes() {
  std::array<CharClass, 128> classes{};
  for (int c = 0; c < 128; ++c) {
    const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const bool is_space = c == ' ' || (c >= '\t' && c <= '\r');
    classes[static_cast<std::size_t>(c)] = is_letter                ? CharClass::letter
                                           : (c >= '0' && c <= '9') ? CharClass::number
                                           : is_space               ? CharClass::space
                                                                    : CharClass::other;
  }
  return classes;
}

/// The flags of ASCII, a bit for each; the table has the same.
constexpr std::array<std::uint8_t, 128> ascii_flags() {
  std::array<std::uint8_t, 128> flags{};
  const auto bit = [](CharFlag flag) { return std::uint8_t{1} << static_cast<int>(flag); };
  const auto classes = ascii_classes();
  for (std::size_t c = 0; c < 128; ++c) {
    const bool is_alphanumeric = classes[c] == CharClass::letter || classes[c] == CharClass::number;
    const bool is_control = c < 0x20 || c == 0x7F;
    int all = 0;
    if (is_alphanumeric || c == '_') all |= bit(CharFlag::pattern_word) | bit(CharFlag::word);
    if (!is_alphanumeric && !is_control && c != ' ') all |= bit(CharFlag::punctuation);
    if (is_control && c != '\t' && c != '\n' && c != '\r') all |= bit(CharFlag::bert_unclean);
    flags[c] = static_cast<std::uint8_t>(all);
  }
  return flags;
}

bool has_in_table(char32_t code_point, CharFlag flag);
}  // namespace unicode_detail

inline constexpr std::array<CharClass, 128> kAsciiClass = unicode_detail::ascii_classes();
inline constexpr std::array<std::uint8_t, 128> kAsciiFlags = unicode_detail::ascii_flags();

inline bool has(char32_t code_point, CharFlag flag) {
  if (code_point >= 0x80) return unicode_detail::has_in_table(code_point, flag);
  return (kAsciiFlags[code_point] >> static_cast<int>(flag) & 1) != 0;
}

}  // namespace heddle
