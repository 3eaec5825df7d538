#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace heddle {

/// What pre-tokenizer patterns ask of a character: general category L*, general category N*, the
/// White_Space property, or none of them, in the version of Unicode that utf8proc has (15.0 with
/// 2.8), which decides everywhere, in patterns too (stand_ins.h). Bytes that are not valid UTF-8
/// are `other`.
enum class CharClass : std::uint8_t { other, letter, number, space };

struct CodePoint {
  char32_t value;
  int length;  ///< bytes taken; 1 when invalid
};
constexpr char32_t kInvalidCodePoint = 0xFFFFFFFF;

/// The code point at `p` (p < end). A byte that starts no valid sequence gives kInvalidCodePoint.
CodePoint decode_utf8(const char* p, const char* end);
void append_utf8(char32_t code_point, std::string& out);

CharClass class_of(char32_t code_point);
/// Alphabetic, a mark, a decimal digit, connector punctuation or a join control (what `\w` means in
/// Unicode's regular expression guidelines).
bool is_word_character(char32_t code_point);

/// Canonical composition (NFC). Bytes that are not valid UTF-8 pass through unchanged.
std::string to_nfc(std::string_view text);

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
}  // namespace unicode_detail

inline constexpr std::array<CharClass, 128> kAsciiClass = unicode_detail::ascii_classes();

}  // namespace heddle
