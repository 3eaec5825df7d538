#include "tokenizer/patterns/oniguruma.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "tokenizer/unicode/characters.h"

namespace heddle {
namespace {

/// What `\w` matches, as the inside of a character class: the categories that it has whole, and the
/// few characters of others. Inside a class of the pattern, numbers such as U+00BD are none of
/// them.
template <bool kInClass>
const std::string& word_class() {
  static const std::string inside = [] {
    std::string ranges = "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}";
    const auto is_extra = [](char32_t c) {
      const Category category = category_of(c);
      return ((category == Category::no && !kInClass) || category == Category::so) &&
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

/// Whether `name`, in one of the spellings that both engines take, is that of a script.
bool is_script(std::string_view name) {
  const std::string pattern = fmt::format("\\p{{sc:{}}}", name);
  int error = 0;
  PCRE2_SIZE offset = 0;
  const std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF, &error,
                    &offset, nullptr),
      &pcre2_code_free);
  return code != nullptr;
}

/// Whether the letter is the same as several others where case does not matter, as ß is as ss.
bool folds_to_several(char32_t letter) {
  // clang-format off
  static constexpr std::array<std::array<char32_t, 2>, 29> kRanges = {{
      {0xDF, 0xDF}, {0x130, 0x130}, {0x149, 0x149}, {0x1F0, 0x1F0}, {0x390, 0x390}, {0x3B0, 0x3B0},
      {0x587, 0x587}, {0x1E96, 0x1E9A}, {0x1E9E, 0x1E9E}, {0x1F50, 0x1F50}, {0x1F52, 0x1F52},
      {0x1F54, 0x1F54}, {0x1F56, 0x1F56}, {0x1F80, 0x1FAF}, {0x1FB2, 0x1FB4}, {0x1FB6, 0x1FB7},
      {0x1FBC, 0x1FBC}, {0x1FC2, 0x1FC4}, {0x1FC6, 0x1FC7}, {0x1FCC, 0x1FCC}, {0x1FD2, 0x1FD3},
      {0x1FD6, 0x1FD7}, {0x1FE2, 0x1FE4}, {0x1FE6, 0x1FE7}, {0x1FF2, 0x1FF4}, {0x1FF6, 0x1FF7},
      {0x1FFC, 0x1FFC}, {0xFB00, 0xFB06}, {0xFB13, 0xFB17}}};
  // clang-format on
  return std::any_of(kRanges.begin(), kRanges.end(),
                     [&](const auto& range) { return range[0] <= letter && letter <= range[1]; });
}

class Translator {
 public:
  Translator(const std::string& pattern, const std::string& where)
      : pattern_(pattern), where_(where) {}

  std::string translate() {
    for (at_ = 0; at_ < pattern_.size(); ++at_) {
      const char c = pattern_[at_];
      check_fold();
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
    if (class_depth_ == 0) item_ = out_.size();
    const char c = pattern_[at_];
    const bool is_alphanumeric =
        (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (c == 's') {  // PCRE2's differs in U+180E
      out_ += "\\p{White_Space}";
    } else if (c == 'S') {
      out_ += "\\P{White_Space}";
    } else if (c == 'w') {
      out_ += class_depth_ > 0 ? word_class<true>() : "[" + word_class<false>() + "]";
    } else if (c == 'W' && class_depth_ == 0) {
      out_ += "[^" + word_class<false>() + "]";
    } else if (c == 'p' || c == 'P') {
      property(c == 'P');
    } else if (rest().starts_with("x{")) {
      out_ += '\\';
      out_ += in_braces();
    } else if (!is_alphanumeric || ((c == 'A' || c == 'z') && class_depth_ == 0) ||
               std::string_view("dDrntfx").find(c) != std::string_view::npos) {
      out_ += {'\\', c};
    } else {
      refuse(fmt::format("the escape \\{}", c));
    }
    class_start_ = false;
  }

  /// Goes to the brace that closes what stands here, and gives all up to it.
  std::string_view in_braces() {
    const std::string_view whole = rest().substr(0, rest().find('}') + 1);
    if (whole.empty()) refuse(fmt::format("\\{} without a closing brace", rest().substr(0, 2)));
    at_ += whole.size() - 1;
    return whole;
  }

  /// A script's name means its own characters; PCRE2 adds those that it shares with other scripts.
  void property(bool is_negated) {
    if (rest().substr(1, 1) != "{") refuse(fmt::format("\\{} without braces", rest().substr(0, 1)));
    std::string_view name = in_braces().substr(2);
    name.remove_suffix(1);
    if (name.starts_with('^')) {
      is_negated = !is_negated;
      name.remove_prefix(1);
    }
    out_ += fmt::format("\\{}{{{}{}}}", is_negated ? 'P' : 'p', is_script(name) ? "sc:" : "", name);
  }

  /// Without regard to case, ß is "ss" too, and PCRE2 knows only single letters.
  void check_fold() const {
    if (groups_.empty() || !groups_.back().ignores_case) return;
    const char* const begin = pattern_.data() + at_;
    const CodePoint c = decode_utf8(begin, pattern_.data() + pattern_.size());
    if (!folds_to_several(c.value)) return;
    const auto size = static_cast<std::size_t>(c.length);
    refuse(fmt::format("(?i:...) with {}, which is as several letters", rest().substr(0, size)));
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
    if (c == '(') return open_group();
    if (c == '{') return interval();
    if (c == '[') {
      class_depth_ = 1;
      class_start_ = true;
    }
    if (c == '|') {
      item_ = kNoItem;
    } else if (c == ')' && !groups_.empty()) {
      item_ = groups_.back().begin;
      groups_.pop_back();
    } else if (!is_quantifier(c) && !is_inside_character(c)) {
      item_ = out_.size();
    }
    out_ += c;
  }

  static bool is_quantifier(char c) { return c == '*' || c == '+' || c == '?'; }
  static bool is_inside_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

  void open_group() {
    static constexpr std::array<std::string_view, 7> kGroups = {
        "(?:", "(?i:", "(?!", "(?=", "(?<!", "(?<=", "("};
    const auto group = std::find_if(kGroups.begin(), kGroups.end(),
                                    [&](std::string_view one) { return rest().starts_with(one); });
    if (*group == "(" && (rest().starts_with("(?") || rest().starts_with("(*"))) {
      refuse(fmt::format("the group {}...", rest().substr(0, 3)));
    }
    const bool ignores_case = *group == "(?i:" || (!groups_.empty() && groups_.back().ignores_case);
    groups_.push_back({out_.size(), ignores_case});
    item_ = kNoItem;
    out_ += *group;
    at_ += group->size() - 1;
  }

  /// {n}, {n,}, {n,m} or {,m}. A + behind it, and a ? behind {n}, repeat it: they do not make it
  /// possessive or lazy, as they would for PCRE2. Another { is a character.
  void interval() {
    const std::string_view whole = rest().substr(0, rest().find('}') + 1);
    const auto digits_from = [&](std::size_t at) {
      const std::size_t end = whole.find_first_not_of("0123456789", at);
      return whole.substr(at, end == std::string_view::npos ? 0 : end - at);
    };
    const std::string_view least = whole.empty() ? "" : digits_from(1);
    const bool has_comma = whole.substr(std::min(whole.size(), 1 + least.size()), 1) == ",";
    const std::string_view most = has_comma ? digits_from(least.size() + 2) : "";
    const std::size_t size = 2 + least.size() + (has_comma ? 1 : 0) + most.size();
    if (size != whole.size() || (least.empty() && most.empty())) {
      item_ = out_.size();
      out_ += '{';
      return;
    }
    at_ += size - 1;
    const char next = at_ + 1 < pattern_.size() ? pattern_[at_ + 1] : '\0';
    const bool is_repeated = next == '+' || (next == '?' && !has_comma);
    if (is_repeated) {
      if (item_ == kNoItem) refuse(fmt::format("{} without what it repeats", whole));
      out_.insert(item_, "(?:");
    }
    out_ += fmt::format("{{{}{}{}}}", least.empty() ? "0" : least, has_comma ? "," : "", most);
    if (is_repeated) out_ += ')';
  }

  struct Group {
    std::size_t begin;  ///< in out_
    bool ignores_case;
  };
  static constexpr std::size_t kNoItem = std::string::npos;

  const std::string& pattern_;
  const std::string& where_;
  std::string out_;
  std::size_t at_ = 0;
  std::size_t item_ = kNoItem;  ///< where in out_ that begins which a quantifier here would repeat
  std::vector<Group> groups_;   ///< that are open
  int class_depth_ = 0;
  bool class_start_ = false;  // only "[" or "[^" so far, where "]" is literal
};

}  // namespace

std::string from_oniguruma(const std::string& pattern, const std::string& where) {
  return Translator(pattern, where).translate();
}

}  // namespace heddle
