#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tokenizer/regex_split.h"
#include "tokenizer/scan.h"

namespace heddle {

/// Cuts text into the words that byte-pair merges stay within: a chain of steps, each of which cuts
/// the pieces of the one before. Immutable and thread-safe.
class PreTokenizer {
 public:
  /// Puts a space before a piece that does not start with one.
  struct PrefixSpace {};
  using Step = std::variant<Scan, RegexSplit, PrefixSpace>;

  void add(Step step) { steps_.push_back(std::move(step)); }

  /// Calls `sink(std::string_view word)` for every word in order; a word is valid during its call
  /// only.
  template <class Sink>
  void for_each_word(std::string_view text, Sink&& sink) const {
    if (!text.empty()) apply(0, text, sink);
  }

 private:
  template <class Sink>
  void apply(std::size_t step, std::string_view piece, Sink& sink) const {
    if (step == steps_.size()) {
      sink(piece);
    } else if (const auto* scan = std::get_if<Scan>(&steps_[step])) {
      const char* p = piece.data();
      const char* end = p + piece.size();
      while (p < end) {
        const char* next = (*scan)(p, end);
        apply(step + 1, {p, static_cast<std::size_t>(next - p)}, sink);
        p = next;
      }
    } else if (const auto* regex = std::get_if<RegexSplit>(&steps_[step])) {
      regex->split(piece, [&](std::string_view part) { apply(step + 1, part, sink); });
    } else if (piece.front() != ' ') {
      apply(step + 1, " " + std::string(piece), sink);
    } else {
      apply(step + 1, piece, sink);
    }
  }

  std::vector<Step> steps_;
};

}  // namespace heddle
