#include "tokenizer/byte_alphabet.h"

#include <array>
#include <cstdint>

#include "tokenizer/unicode/characters.h"

namespace heddle {
namespace {

constexpr int kExtra = 68;

constexpr bool stands_for_itself(int byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

struct Alphabet {
  std::array<char32_t, 256> character{};
  std::array<std::int16_t, 256 + kExtra> byte{};  // -1: not in the alphabet
};

constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  for (auto& b : alphabet.byte) b = -1;
  char32_t next = 256;
  for (int b = 0; b < 256; ++b) {
    const char32_t c = stands_for_itself(b) ? static_cast<char32_t>(b) : next++;
    alphabet.character[static_cast<std::size_t>(b)] = c;
    alphabet.byte[c] = static_cast<std::int16_t>(b);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

char32_t byte_character(unsigned char byte) { return kAlphabet.character[byte]; }

std::string spell_bytes(std::string_view bytes) {
  std::string out;
  for (const char b : bytes) append_utf8(byte_character(static_cast<unsigned char>(b)), out);
  return out;
}

std::optional<std::string> spelled_bytes(std::string_view spelling) {
  std::string out;
  out.reserve(spelling.size());
  const char* p = spelling.data();
  const char* end = p + spelling.size();
  while (p < end) {
    const CodePoint c = decode_utf8(p, end);
    if (c.value >= kAlphabet.byte.size() || kAlphabet.byte[c.value] < 0) return std::nullopt;
    out.push_back(static_cast<char>(kAlphabet.byte[c.value]));
    p += c.length;
  }
  return out;
}

}  // namespace heddle
