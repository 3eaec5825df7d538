#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/function_ref.h"

namespace heddle {

class Section;

/// A regular expression or a text to find, by PCRE2 (compiled to machine code where the platform
/// allows, with limits on the work of one match). Immutable and thread-safe.
class Pattern {
 public:
  /// Regular expressions are written for the engine of the reference implementation (Oniguruma).
  /// What PCRE2 would read differently is translated where possible and otherwise refused by name
  /// with Error(data), which `where` starts.
  Pattern(std::string pattern, bool is_literal, const std::string& where);
  ~Pattern();
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;

  /// Calls `part` with the matches and with what lies between them, in order; matches may be empty,
  /// and bytes that are not valid UTF-8 are parts of their own, outside every match. Throws
  /// Error(data) when a match exceeds the limits.
  void for_each_part(std::string_view text,
                     FunctionRef<void(std::string_view part, bool is_match)> part) const;

 private:
  struct Code;
  void find_in_valid(std::string_view text, FunctionRef<void(std::string_view, bool)> part) const;

  std::string pattern_;
  bool is_literal_;
  std::string where_;
  std::unique_ptr<Code> code_;
};

/// {"String": "..."} or {"Regex": "..."} under `pattern` of a step.
struct PatternText {
  std::string text;
  bool is_literal;
};
PatternText pattern_text(const Section& step);
Pattern read_pattern(const Section& step);

/// text with every match replaced.
std::string replaced(const Pattern& pattern, std::string_view text, std::string_view by);

}  // namespace heddle
