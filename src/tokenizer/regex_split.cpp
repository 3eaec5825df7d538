#include "tokenizer/regex_split.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/strings.h"
#include "tokenizer/stand_ins.h"

namespace heddle {
namespace {

constexpr std::uint32_t kMatchLimit = 1'000'000;
constexpr std::uint32_t kHeapLimitKib = 64 * 1024;
constexpr std::size_t kMaxPattern = 64 * 1024;

[[noreturn]] void refuse(const std::string& where, std::string_view what,
                         const std::string& pattern) {
  throw Error(ErrorCode::data,
              fmt::format("{}: the pre-tokenizer pattern uses {}, which is not supported: {}",
                          where, what, pattern),
              "use a tokenizer whose Split pattern has character classes, groups and lookarounds "
              "only");
}

/// Rewrites an Oniguruma pattern for PCRE2. `\s` differs in U+180E, so it becomes the property;
/// escapes, groups and class operators that mean something else (or nothing) there are refused.
class Translator {
 public:
  Translator(const std::string& pattern, const std::string& where)
      : pattern_(pattern), where_(where) {}

  std::string translate() {
    for (at_ = 0; at_ < pattern_.size(); ++at_) {
      const char c = pattern_[at_];
      if (c == '\\') {
        escape();
      } else if (in_class_) {
        class_character(c);
      } else {
        plain_character(c);
      }
    }
    return out_;
  }

 private:
  std::string_view rest() const { return std::string_view(pattern_).substr(at_); }

  void escape() {
    if (++at_ == pattern_.size()) refuse(where_, "a backslash at its end", pattern_);
    const char c = pattern_[at_];
    const bool is_alphanumeric =
        (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (c == 's') {
      out_ += "\\p{White_Space}";
    } else if (c == 'S') {
      out_ += "\\P{White_Space}";
    } else if (!is_alphanumeric ||
               std::string_view("dDpPrntfx").find(c) != std::string_view::npos) {
      out_ += {'\\', c};
    } else {
      refuse(where_, fmt::format("the escape \\{}", c), pattern_);
    }
    class_start_ = false;
  }

  void class_character(char c) {
    if (c == '[') refuse(where_, "'[' inside a character class", pattern_);
    if (rest().starts_with("&&")) refuse(where_, "class intersection (&&)", pattern_);
    if (c == ']' && !class_start_) in_class_ = false;
    if (!(class_start_ && c == '^')) class_start_ = false;
    out_ += c;
  }

  void plain_character(char c) {
    static constexpr std::array<std::string_view, 6> kGroups = {"(?:", "(?i:", "(?!",
                                                                "(?=", "(?<!", "(?<="};
    if (c == '[') in_class_ = class_start_ = true;
    if ((rest().starts_with("(?") || rest().starts_with("(*")) &&
        std::none_of(kGroups.begin(), kGroups.end(),
                     [&](std::string_view group) { return rest().starts_with(group); })) {
      refuse(where_, fmt::format("the group {}...", rest().substr(0, 3)), pattern_);
    }
    out_ += c;
  }

  const std::string& pattern_;
  const std::string& where_;
  std::string out_;
  std::size_t at_ = 0;
  bool in_class_ = false;
  bool class_start_ = false;  // only "[" or "[^" so far, where "]" is literal
};

using Part = std::pair<std::string_view, bool>;

/// Joins delimiters with their neighbours as the behavior asks; parts are adjacent in the text.
std::vector<std::string_view> merge_parts(const std::vector<Part>& parts, SplitBehavior behavior) {
  std::vector<std::string_view> pieces;
  const auto extend = [](std::string_view& piece, std::string_view by) {
    piece = {piece.data(), piece.size() + by.size()};
  };
  if (behavior == SplitBehavior::merged_with_next) {
    bool previous = false;
    for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
      if (part->second && !previous && !pieces.empty()) {
        pieces.back() = {part->first.data(), part->first.size() + pieces.back().size()};
      } else {
        pieces.push_back(part->first);
      }
      previous = part->second;
    }
    std::reverse(pieces.begin(), pieces.end());
    return pieces;
  }
  bool previous = false;
  for (const auto& [text, is_delimiter] : parts) {
    const bool joins = behavior == SplitBehavior::contiguous ? is_delimiter == previous
                                                             : is_delimiter && !previous;
    if (joins && !pieces.empty()) {
      extend(pieces.back(), text);
    } else {
      pieces.push_back(text);
    }
    previous = is_delimiter;
  }
  return pieces;
}

struct MatchDataFree {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

}  // namespace

struct RegexSplit::Code {
  pcre2_code* code = nullptr;
  pcre2_match_context* context = nullptr;
  ~Code() {
    pcre2_match_context_free(context);
    pcre2_code_free(code);
  }
};

RegexSplit::RegexSplit(Rule rule, const std::string& where)
    : rule_(std::move(rule)), where_(where), code_(std::make_unique<Code>()) {
  if (rule_.pattern.empty()) fail(ErrorCode::data, "{}: empty pre-tokenizer pattern", where);
  if (rule_.pattern.size() > kMaxPattern) {
    fail(ErrorCode::data, "{}: pre-tokenizer pattern of {} bytes is too long", where,
         rule_.pattern.size());
  }
  if (valid_utf8_prefix(rule_.pattern) != rule_.pattern.size()) {
    fail(ErrorCode::data, "{}: the pre-tokenizer pattern is not valid UTF-8", where);
  }
  const std::string pattern =
      rule_.is_literal ? rule_.pattern : Translator(rule_.pattern, where).translate();
  // PCRE2 allows few options beside LITERAL. Oniguruma's ^ and $ are those of lines.
  const std::uint32_t options =
      PCRE2_UTF | (rule_.is_literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE);
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options,
                              &error, &offset, nullptr);
  if (code_->code == nullptr) {
    std::array<PCRE2_UCHAR, 256> reason{};
    pcre2_get_error_message(error, reason.data(), reason.size());
    fail(ErrorCode::data, "{}: pre-tokenizer pattern not understood ({}): {}", where,
         reinterpret_cast<const char*>(reason.data()), rule_.pattern);
  }
  pcre2_jit_compile(code_->code, PCRE2_JIT_COMPLETE);  // without it, matching is only slower
  code_->context = pcre2_match_context_create(nullptr);
  pcre2_set_match_limit(code_->context, kMatchLimit);
  pcre2_set_heap_limit(code_->context, kHeapLimitKib);
}

RegexSplit::~RegexSplit() = default;
RegexSplit::RegexSplit(RegexSplit&&) noexcept = default;
RegexSplit& RegexSplit::operator=(RegexSplit&&) noexcept = default;

void RegexSplit::split(std::string_view text,
                       const std::function<void(std::string_view)>& sink) const {
  while (!text.empty()) {
    const auto valid = valid_utf8_prefix(text);
    if (valid > 0) split_valid(text.substr(0, valid), sink);
    if (valid < text.size()) sink(text.substr(valid, 1));
    text.remove_prefix(std::min(valid + 1, text.size()));
  }
}

void RegexSplit::split_valid(std::string_view text,
                             const std::function<void(std::string_view)>& sink) const {
  if (rule_.behavior == SplitBehavior::isolated || rule_.behavior == SplitBehavior::removed) {
    const bool removes = rule_.behavior == SplitBehavior::removed;
    find_parts(text, [&](std::string_view part, bool is_delimiter) {
      if (!part.empty() && !(removes && is_delimiter)) sink(part);
    });
    return;
  }
  std::vector<Part> parts;
  find_parts(text, [&](std::string_view part, bool is_delimiter) {
    parts.emplace_back(part, is_delimiter);
  });
  for (const auto piece : merge_parts(parts, rule_.behavior)) {
    if (!piece.empty()) sink(piece);
  }
}

void RegexSplit::find_parts(std::string_view text,
                            const std::function<void(std::string_view, bool)>& part) const {
  const std::unique_ptr<pcre2_match_data, MatchDataFree> data(
      pcre2_match_data_create_from_pattern(code_->code, nullptr));
  std::string buffer;
  const std::string_view read = rule_.is_literal ? text : with_stand_ins(text, buffer);
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(read.data());
  std::size_t search = 0, previous_end = 0;
  while (search <= text.size()) {
    int found = pcre2_match(code_->code, subject, text.size(), search, PCRE2_NO_UTF_CHECK,
                            data.get(), code_->context);
    if (found == PCRE2_ERROR_JIT_STACKLIMIT) {  // the interpreter keeps its stack on the heap
      found = pcre2_match(code_->code, subject, text.size(), search,
                          PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data.get(), code_->context);
    }
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) {
      fail(ErrorCode::data, "{}: the pre-tokenizer pattern needs too much work on this text: {}",
           where_, rule_.pattern);
    }
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data.get());
    if (range[0] > previous_end) {
      part(text.substr(previous_end, range[0] - previous_end), rule_.invert);
    }
    part(text.substr(range[0], range[1] - range[0]), !rule_.invert);
    search = previous_end = range[1];
    if (range[0] == range[1]) {  // an empty match: look further from the next character
      do ++search;
      while (search < text.size() && (static_cast<unsigned char>(text[search]) & 0xC0) == 0x80);
    }
  }
  if (previous_end < text.size()) part(text.substr(previous_end), rule_.invert);
}

}  // namespace heddle
