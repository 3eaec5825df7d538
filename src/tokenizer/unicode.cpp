#include "tokenizer/unicode.h"

#include <utf8proc.h>

#include <cstdlib>
#include <memory>
#include <vector>

#include "base/strings.h"

namespace heddle {
namespace {

bool is_white_space(char32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

CharClass compute_class(char32_t c) {
  if (is_white_space(c)) return CharClass::space;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: return CharClass::letter;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO: return CharClass::number;
    default: return CharClass::other;
  }
}

/// Classes of all code points in blocks of 256; equal neighbouring blocks are stored once, which
/// leaves some 60 KiB that stay in cache.
class ClassTable {
 public:
  ClassTable() {
    // No letter or number lies above plane 3; those planes share the last block.
    constexpr char32_t kEnd = 0x40000;
    blocks_.push_back({});
    for (char32_t base = 0; base < kEnd; base += 256) {
      Block block;
      for (char32_t i = 0; i < 256; ++i) block[i] = compute_class(base + i);
      if (block != blocks_.back()) blocks_.push_back(block);
      index_[base >> 8] = static_cast<std::uint16_t>(blocks_.size() - 1);
    }
  }
  CharClass operator()(char32_t c) const { return blocks_[index_[c >> 8]][c & 255]; }

 private:
  using Block = std::array<CharClass, 256>;
  std::array<std::uint16_t, 0x1100> index_{};  // block 0 is all `other`
  std::vector<Block> blocks_;
};

bool is_enclosed_letter(char32_t c) {
  // The symbols (category So) that are Alphabetic: circled, squared and negative Latin letters.
  return (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
         (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

void append_nfc(std::string_view valid, std::string& out) {
  utf8proc_uint8_t* result = nullptr;
  const auto length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(valid.data()),
                   static_cast<utf8proc_ssize_t>(valid.size()), &result,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owned(result, &std::free);
  if (length < 0) {
    out.append(valid);
  } else {
    out.append(reinterpret_cast<const char*>(result), static_cast<std::size_t>(length));
  }
}

}  // namespace

CodePoint decode_utf8(const char* p, const char* end) {
  const auto at = [&](int i) { return static_cast<unsigned char>(p[i]); };
  const unsigned lead = at(0);
  if (lead < 0x80) return {lead, 1};
  const int length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || end - p < length) return {kInvalidCodePoint, 1};
  // The second byte's range excludes overlong forms, surrogates and code points above U+10FFFF.
  const unsigned low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (at(1) < low || at(1) > high) return {kInvalidCodePoint, 1};
  char32_t value = lead & (0xFFU >> (length + 1));
  for (int i = 1; i < length; ++i) {
    if ((at(i) & 0xC0) != 0x80) return {kInvalidCodePoint, 1};
    value = value << 6 | (at(i) & 0x3FU);
  }
  return {value, length};
}

void append_utf8(char32_t c, std::string& out) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6);
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

CharClass class_of(char32_t code_point) {
  static const ClassTable table;
  return code_point < 0x110000 ? table(code_point) : CharClass::other;
}

bool is_word_character(char32_t c) {
  if (c >= 0x110000) return false;
  if (c == 0x200C || c == 0x200D || is_enclosed_letter(c)) return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: return class_of(c) == CharClass::letter;
  }
}

std::string to_nfc(std::string_view text) {
  // ASCII never composes with what precedes it, so only runs of other characters, each with the one
  // ASCII character before it (a base letter, perhaps), need the library.
  const auto is_ascii = [&](std::size_t i) { return static_cast<signed char>(text[i]) >= 0; };
  std::string out;
  out.reserve(text.size());
  std::size_t at = 0;
  while (at < text.size()) {
    std::size_t run = at;
    while (run < text.size() && is_ascii(run)) ++run;
    std::size_t end = run;
    while (end < text.size() && !is_ascii(end)) ++end;
    if (run < end && run > at) --run;
    out.append(text, at, run - at);
    while (run < end) {
      const auto valid = valid_utf8_prefix(text.substr(run, end - run));
      if (valid > 0) append_nfc(text.substr(run, valid), out);
      run += valid;
      if (run < end) out.push_back(text[run++]);
    }
    at = end;
  }
  return out;
}

}  // namespace heddle
