#include "tokenizer/pretokenizers/scan.h"

#include "tokenizer/unicode/characters.h"

namespace heddle {

const std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const std::string_view kClipPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+)";

namespace {

struct Char {
  CharClass kind;
  int length;
};

inline Char char_at(const char* p, const char* end) {
  const auto byte = static_cast<unsigned char>(*p);
  if (byte < 0x80) return {kAsciiClass[byte], 1};
  const CodePoint c = decode_utf8(p, end);
  return {class_of(c.value), c.length};
}

inline const char* run_end(const char* p, const char* end, CharClass kind) {
  while (p < end) {
    const Char c = char_at(p, end);
    if (c.kind != kind) break;
    p += c.length;
  }
  return p;
}

inline bool is_line_break(char c) { return c == '\n' || c == '\r'; }

/// `\s+(?!\S)|\s+`: a run of spaces before a word leaves its last space to the word.
const char* whitespace_end(const char* p, const char* end) {
  const char* last = p;
  const char* q = p;
  while (q < end) {
    const Char c = char_at(q, end);
    if (c.kind != CharClass::space) return last == p ? q : last;
    last = q;
    q += c.length;
  }
  return end;
}

/// Length of the contraction at the apostrophe `p`, or 0. Ignoring case, s matches U+017F (long s)
/// too, as full Unicode case folding has it.
template <bool kIgnoreCase>
int contraction_length(const char* p, const char* end) {
  const auto letter = [&](int i) -> char {
    if (p + i >= end) return '\0';
    const char c = p[i];
    return kIgnoreCase && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  };
  switch (letter(1)) {
    case 's':
    case 't':
    case 'm':
    case 'd': return 2;
    case 'r':
    case 'v': return letter(2) == 'e' ? 3 : 0;
    case 'l': return letter(2) == 'l' ? 3 : 0;
    case '\xC5': return kIgnoreCase && letter(2) == '\xBF' ? 3 : 0;
    default: return 0;
  }
}

/// Where the word proper starts when one space may precede it.
inline const char* after_space(const char* p, const char* end) {
  return *p == ' ' && p + 1 < end ? p + 1 : p;
}

template <int kMaxNumbers>
const char* scan_tiktoken(const char* p, const char* end) {
  if (*p == '\'') {
    if (const int length = contraction_length<true>(p, end)) return p + length;
  }
  const Char first = char_at(p, end);
  const char* second = p + first.length;
  if (first.kind == CharClass::letter) return run_end(second, end, CharClass::letter);
  if (first.kind == CharClass::number) {
    const char* q = second;
    for (int n = 1; n < kMaxNumbers && q < end; ++n) {
      const Char c = char_at(q, end);
      if (c.kind != CharClass::number) break;
      q += c.length;
    }
    return q;
  }
  if (!is_line_break(*p) && second < end) {
    const Char c = char_at(second, end);
    if (c.kind == CharClass::letter) return run_end(second + c.length, end, CharClass::letter);
  }
  const char* word = after_space(p, end);
  if (char_at(word, end).kind == CharClass::other) {
    const char* q = run_end(word, end, CharClass::other);
    while (q < end && is_line_break(*q)) ++q;
    return q;
  }
  const char* past_break = nullptr;
  const char* run = run_end(p, end, CharClass::space);
  for (const char* q = run; q > p; --q) {
    if (is_line_break(q[-1])) {
      past_break = q;
      break;
    }
  }
  return past_break != nullptr ? past_break : whitespace_end(p, end);
}

}  // namespace

const char* scan_gpt2(const char* p, const char* end) {
  if (*p == '\'') {
    if (const int length = contraction_length<false>(p, end)) return p + length;
  }
  const char* word = after_space(p, end);
  const Char c = char_at(word, end);
  if (c.kind == CharClass::space) return whitespace_end(p, end);
  return run_end(word + c.length, end, c.kind);
}

const char* scan_llama3(const char* p, const char* end) { return scan_tiktoken<3>(p, end); }

const char* scan_qwen2(const char* p, const char* end) { return scan_tiktoken<1>(p, end); }

const char* scan_clip(const char* p, const char* end) {
  if (*p == '\'') {
    if (const int length = contraction_length<false>(p, end)) return p + length;
  }
  const Char c = char_at(p, end);
  return c.kind == CharClass::number ? p + c.length : run_end(p + c.length, end, c.kind);
}

const char* scan_number_runs(const char* p, const char* end) {
  const bool is_number = char_at(p, end).kind == CharClass::number;
  while (p < end) {
    const Char c = char_at(p, end);
    if ((c.kind == CharClass::number) != is_number) break;
    p += c.length;
  }
  return p;
}

const char* scan_single_numbers(const char* p, const char* end) {
  const Char c = char_at(p, end);
  return c.kind == CharClass::number ? p + c.length : scan_number_runs(p, end);
}

Scan scanner_for(std::string_view pattern) {
  if (pattern == kGpt2Pattern) return scan_gpt2;
  if (pattern == kLlama3Pattern) return scan_llama3;
  if (pattern == kQwen2Pattern) return scan_qwen2;
  if (pattern == kClipPattern) return scan_clip;
  return nullptr;
}

}  // namespace heddle
