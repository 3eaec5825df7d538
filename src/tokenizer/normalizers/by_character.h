#pragma once

#include "tokenizer/normalizers/normalizer.h"
#include "tokenizer/unicode/characters.h"

namespace heddle {

/// Rewrites `text` character by character: `put(char32_t, bytes, out)` appends what takes the place
/// of a character. Where nothing takes the place of the first, what follows is not at the start.
template <class Put>
void rewrite_characters(NormalText& text, Put put) {
  std::string out;
  out.reserve(text.text.size());
  for_each_character(text.text, [&](char32_t c, std::string_view bytes) {
    if (c == kInvalidCodePoint) {
      out += bytes;
      return;
    }
    put(c, bytes, out);
    if (out.empty()) text.at_start = false;
  });
  text.text = std::move(out);
}

}  // namespace heddle
