#include "tokenizer/patterns/oniguruma.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/error.h"
#include "tokenizer/unicode/characters.h"

namespace heddle {
namespace {

/// What `\w` matches, as the inside of a character class: the categories that it has whole, and the
/// few characters of others.
const std::string& word_class() {
  static const std::string inside = [] {
    std::string ranges = "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}";
    const auto is_extra = [](char32_t c) {
      const Category category = category_of(c);
      return (category == Category::no || category == Category::so) &&
             has(c, CharFlag::pattern_word);
    };
    for (char32_t c = 0; c < 0x110000; ++c) {
      if (!is_extra(c)) continue;
      const char32_t begin = c;
      while (is_extra(c + 1)) ++c;
      ranges += fmt::format("\\x{{{:X}}}-\\x{{{:X}}}", static_cast<std::uint32_t>(begin),
                            static_cast<std::uint32_t>(c));
    }
    return ranges;
  }();
  return inside;
}

class Translator {
 public:
  Translator(const std::string& pattern, const std::string& where)
      : pattern_(pattern), where_(where) {}

  std::string translate() {
    for (at_ = 0; at_ < pattern_.size(); ++at_) {
      const char c = pattern_[at_];
      if (c == '\\') {
        escape();
      } else if (class_depth_ > 0) {
        class_character(c);
      } else {
        plain_character(c);
      }
    }
    return out_;
  }

 private:
  std::string_view rest() const { return std::string_view(pattern_).substr(at_); }

  [[noreturn]] void refuse(std::string_view what) const {
    throw Error(
        ErrorCode::data,
        fmt::format("{}: the pattern uses {}, which is not supported: {}", where_, what, pattern_),
        "use a tokenizer whose patterns have character classes, groups and lookarounds "
        "only");
  }

  void escape() {
    if (++at_ == pattern_.size()) refuse("a backslash at its end");
    const char c = pattern_[at_];
    const bool is_alphanumeric =
        (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (c == 's') {  // PCRE2's differs in U+180E
      out_ += "\\p{White_Space}";
    } else if (c == 'S') {
      out_ += "\\P{White_Space}";
    } else if (c == 'w') {
      out_ += class_depth_ > 0 ? word_class() : "[" + word_class() + "]";
    } else if (c == 'W' && class_depth_ == 0) {
      out_ += "[^" + word_class() + "]";
    } else if (!is_alphanumeric || ((c == 'A' || c == 'z') && class_depth_ == 0) ||
               std::string_view("dDpPrntfx").find(c) != std::string_view::npos) {
      out_ += {'\\', c};
    } else {
      refuse(fmt::format("the escape \\{}", c));
    }
    class_start_ = false;
  }

  /// A class inside a class adds its characters, so the inner brackets are left out.
  void class_character(char c) {
    if (rest().starts_with("&&")) refuse("class intersection (&&)");
    if (c == '[') {
      if (rest().starts_with("[^") || rest().starts_with("[:")) {
        refuse(fmt::format("'{}' inside a character class", rest().substr(0, 2)));
      }
      ++class_depth_;
      class_start_ = true;
      return;
    }
    if (c == ']' && !class_start_ && --class_depth_ > 0) return;
    if (c == ']' && class_start_ && class_depth_ > 1) refuse("an empty class inside a class");
    if (!(class_start_ && c == '^')) class_start_ = false;
    out_ += c;
  }

  void plain_character(char c) {
    static constexpr std::array<std::string_view, 6> kGroups = {"(?:", "(?i:", "(?!",
                                                                "(?=", "(?<!", "(?<="};
    if (c == '[') {
      class_depth_ = 1;
      class_start_ = true;
    }
    if ((rest().starts_with("(?") || rest().starts_with("(*")) &&
        std::none_of(kGroups.begin(), kGroups.end(),
                     [&](std::string_view group) { return rest().starts_with(group); })) {
      refuse(fmt::format("the group {}...", rest().substr(0, 3)));
    }
    out_ += c;
  }

  const std::string& pattern_;
  const std::string& where_;
  std::string out_;
  std::size_t at_ = 0;
  int class_depth_ = 0;
  bool class_start_ = false;  // only "[" or "[^" so far, where "]" is literal
};

}  // namespace

std::string from_oniguruma(const std::string& pattern, const std::string& where) {
  return Translator(pattern, where).translate();
}

}  // namespace heddle
