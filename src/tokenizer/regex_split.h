#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace heddle {

/// What becomes of a delimiter that the pattern finds, in the words of tokenizer.json.
enum class SplitBehavior { isolated, removed, contiguous, merged_with_previous, merged_with_next };

/// A `Split` pre-tokenizer with any pattern, by PCRE2 (compiled to machine code where the platform
/// allows, with limits on the work of one match). Immutable and thread-safe.
class RegexSplit {
 public:
  struct Rule {
    std::string pattern = {};
    bool is_literal = false;  ///< the pattern is text to find, not a regular expression
    SplitBehavior behavior = SplitBehavior::isolated;
    bool invert = false;  ///< what lies between the matches is the delimiter
  };

  /// Patterns are written for the engine of the reference implementation (Oniguruma). What PCRE2
  /// would read differently is translated where possible and otherwise refused by name with
  /// Error(data), which `where` starts.
  RegexSplit(Rule rule, const std::string& where);
  ~RegexSplit();
  RegexSplit(RegexSplit&&) noexcept;
  RegexSplit& operator=(RegexSplit&&) noexcept;

  /// Calls `sink` with the non-empty pieces of `text` in order. Bytes that are not valid UTF-8
  /// become pieces of their own. Throws Error(data) when a match exceeds the limits.
  void split(std::string_view text, const std::function<void(std::string_view)>& sink) const;

 private:
  struct Code;
  void split_valid(std::string_view text, const std::function<void(std::string_view)>& sink) const;
  void find_parts(std::string_view text,
                  const std::function<void(std::string_view, bool)>& part) const;

  Rule rule_;
  std::string where_;
  std::unique_ptr<Code> code_;
};

}  // namespace heddle
