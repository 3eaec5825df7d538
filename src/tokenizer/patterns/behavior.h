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

/// The runs of `text` in which all characters are delimiters, or none is: `take(run,
/// is_delimiter)`.
template <class IsDelimiter, class Take>
void for_each_run(std::string_view text, IsDelimiter is_delimiter, Take take) {
  const char* begin = text.data();
  bool run_cuts = false;
  for_each_character(text, [&](char32_t c, std::string_view bytes) {
    const bool cuts = is_delimiter(c);
    if (cuts == run_cuts) return;
    if (bytes.data() > begin) {
      take(std::string_view(begin, static_cast<std::size_t>(bytes.data() - begin)), run_cuts);
    }
    begin = bytes.data();
    run_cuts = cuts;
  });
  const char* const end = text.data() + text.size();
  if (end > begin) take(std::string_view(begin, static_cast<std::size_t>(end - begin)), run_cuts);
}

/// The pieces of `text` where each character with `is_delimiter(char32_t)` is a delimiter.
template <class IsDelimiter>
void for_each_piece_at(std::string_view text, SplitBehavior behavior, IsDelimiter is_delimiter,
                       FunctionRef<void(std::string_view)> sink) {
  if (behavior == SplitBehavior::removed || behavior == SplitBehavior::contiguous) {
    return for_each_run(text, is_delimiter, [&](std::string_view run, bool cuts) {
      if (!cuts || behavior == SplitBehavior::contiguous) sink(run);
    });
  }
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
