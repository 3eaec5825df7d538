#include "tokenizer/unicode/characters.h"

#include <iterator>
#include <unordered_map>
#include <vector>

namespace heddle {
namespace {

#include "tokenizer/unicode/character_tables.inc"

constexpr char32_t kEnd = 0x110000;

bool is_white_space(char32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

/// A value for each code point, in blocks of 256 of which equal neighbours are stored once.
template <class Value>
class BlockTable {
 public:
  template <class ValueOf>
  explicit BlockTable(ValueOf value_of) {
    for (char32_t base = 0; base < kEnd; base += 256) {
      Block block;
      for (char32_t i = 0; i < 256; ++i) block[i] = value_of(base + i);
      if (blocks_.empty() || block != blocks_.back()) blocks_.push_back(block);
      index_[base >> 8] = static_cast<std::uint16_t>(blocks_.size() - 1);
    }
  }
  Value operator()(char32_t c) const { return blocks_[index_[c >> 8]][c & 255]; }

 private:
  using Block = std::array<Value, 256>;
  std::array<std::uint16_t, (kEnd >> 8)> index_{};
  std::vector<Block> blocks_;
};

/// Reads a list of runs at ascending code points.
template <std::size_t kSize>
class RunReader {
 public:
  explicit RunReader(const std::uint32_t (&runs)[kSize]) : runs_(runs) {}
  std::uint32_t operator()(char32_t c) {
    while (at_ + 2 < kSize && runs_[at_ + 2] <= c) at_ += 2;
    return runs_[at_ + 1];
  }

 private:
  const std::uint32_t (&runs_)[kSize];
  std::size_t at_ = 0;
};

std::uint32_t properties(char32_t c) {
  static const BlockTable<std::uint32_t> table(RunReader{kPropertyRuns});
  return table(c);
}

CharClass compute_class(char32_t c) {
  if (is_white_space(c)) return CharClass::space;
  const Category category = category_of(c);
  if (category >= Category::lu && category <= Category::lo) return CharClass::letter;
  if (category >= Category::nd && category <= Category::no) return CharClass::number;
  return CharClass::other;
}

struct Lowercase {
  Lowercase() {
    for (const std::uint32_t* p = std::begin(kLowercase); p < std::end(kLowercase);) {
      std::string& mapped = of[*p];
      const std::uint32_t length = p[1];
      for (std::uint32_t i = 0; i < length; ++i) append_utf8(p[2 + i], mapped);
      if (length == 1) capitals.emplace(p[2], *p);
      p += 2 + length;
    }
  }
  std::unordered_map<char32_t, std::string> of;
  std::unordered_map<char32_t, char32_t> capitals;
};

const Lowercase& lowercase() {
  static const Lowercase all;
  return all;
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

std::size_t last_character(std::string_view text) {
  std::size_t at = text.size() - 1;
  const std::size_t lowest = text.size() > 4 ? text.size() - 4 : 0;
  while (at > lowest && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  const CodePoint c = decode_utf8(text.data() + at, text.data() + text.size());
  return at + static_cast<std::size_t>(c.length) == text.size() ? at : text.size() - 1;
}

Category category_of(char32_t c) {
  return c < kEnd ? static_cast<Category>(properties(c) & 31) : Category::cn;
}

CharClass class_of(char32_t c) {
  static const BlockTable<CharClass> table(compute_class);
  return c < kEnd ? table(c) : CharClass::other;
}

std::size_t leading_white_space(std::string_view text) {
  std::size_t size = 0;
  while (size < text.size()) {
    const CodePoint c = decode_utf8(text.data() + size, text.data() + text.size());
    if (class_of(c.value) != CharClass::space) break;
    size += static_cast<std::size_t>(c.length);
  }
  return size;
}

bool unicode_detail::has_in_table(char32_t c, CharFlag flag) {
  return c < kEnd && (properties(c) >> (11 + static_cast<int>(flag)) & 1) != 0;
}

GraphemeBreak grapheme_break(char32_t c) {
  return c < kEnd ? static_cast<GraphemeBreak>(properties(c) >> 5 & 15) : GraphemeBreak::control;
}

ConjunctBreak conjunct_break(char32_t c) {
  return c < kEnd ? static_cast<ConjunctBreak>(properties(c) >> 9 & 3) : ConjunctBreak::none;
}

void append_lowercase(char32_t c, std::string& out) {
  if (c < 0x80) {
    out.push_back(static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c));
  } else if (const auto at = lowercase().of.find(c); at != lowercase().of.end()) {
    out += at->second;
  } else {
    append_utf8(c, out);
  }
}

char32_t uppercase_of(char32_t c) {
  const auto at = lowercase().capitals.find(c);
  return at == lowercase().capitals.end() ? c : at->second;
}

}  // namespace heddle
