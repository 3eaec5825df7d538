#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "base/function_ref.h"
#include "tokenizer/unicode/characters.h"

namespace heddle {

class Section;

/// What becomes of a delimiter, in the words of tokenizer.json.
enum class SplitBehavior { isolated, removed, contiguous, merged_with_previous, merged_with_next };

/// `behavior` of a step.
SplitBehavior read_behavior(const Section& step);
SplitBehavior read_behavior(const Section& step, SplitBehavior otherwise);

/// A stretch of text and whether it is a delimiter.
using TextPart = std::pair<std::string_view, bool>;

/// Calls `sink` with the non-empty pieces that adjacent `parts` become.
void for_each_piece(const std::vector<TextPart>& parts, SplitBehavior behavior,
                    FunctionRef<void(std::string_view)> sink);

/// The pieces of `text` where each character with `is_delimiter(char32_t)` is a delimiter.
template <class IsDelimiter>
void for_each_piece_at(std::string_view text, SplitBehavior behavior, IsDelimiter is_delimiter,
                       FunctionRef<void(std::string_view)> sink) {
  std::vector<TextPart> parts;
  for_each_character(text, [&](char32_t c, std::string_view bytes) {
    const bool cuts = is_delimiter(c);
    if (!cuts && !parts.empty() && !parts.back().second) {
      std::string_view& run = parts.back().first;
      run = {run.data(), run.size() + bytes.size()};
    } else {
      parts.emplace_back(bytes, cuts);
    }
  });
  for_each_piece(parts, behavior, sink);
}

}  // namespace heddle
