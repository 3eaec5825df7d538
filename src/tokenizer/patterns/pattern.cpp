#include "tokenizer/patterns/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "base/strings.h"
#include "tokenizer/patterns/oniguruma.h"
#include "tokenizer/patterns/stand_ins.h"
#include "tokenizer/section.h"

namespace heddle {
namespace {

constexpr std::uint32_t kMatchLimit = 1'000'000;
constexpr std::uint32_t kHeapLimitKib = 64 * 1024;
constexpr std::size_t kMaxPattern = 64 * 1024;

struct MatchDataFree {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

}  // namespace

struct Pattern::Code {
  pcre2_code* code = nullptr;
  pcre2_match_context* context = nullptr;
  ~Code() {
    pcre2_match_context_free(context);
    pcre2_code_free(code);
  }
};

Pattern::Pattern(std::string pattern, bool is_literal, const std::string& where)
    : pattern_(std::move(pattern)),
      is_literal_(is_literal),
      where_(where),
      code_(std::make_unique<Code>()) {
  if (pattern_.empty()) fail(ErrorCode::data, "{}: the pattern is empty", where);
  if (pattern_.size() > kMaxPattern) {
    fail(ErrorCode::data, "{}: a pattern of {} bytes is too long", where, pattern_.size());
  }
  if (valid_utf8_prefix(pattern_) != pattern_.size()) {
    fail(ErrorCode::data, "{}: the pattern is not valid UTF-8", where);
  }
  const std::string code = is_literal_ ? pattern_ : from_oniguruma(pattern_, where);
  // PCRE2 allows few options beside LITERAL. Oniguruma's ^ and $ are those of lines.
  const std::uint32_t options =
      PCRE2_UTF | (is_literal_ ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE);
  int error = 0;
  PCRE2_SIZE offset = 0;
  code_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(code.data()), code.size(), options,
                              &error, &offset, nullptr);
  if (code_->code == nullptr) {
    std::array<PCRE2_UCHAR, 256> reason{};
    pcre2_get_error_message(error, reason.data(), reason.size());
    fail(ErrorCode::data, "{}: pattern not understood ({}): {}", where,
         reinterpret_cast<const char*>(reason.data()), pattern_);
  }
  pcre2_jit_compile(code_->code, PCRE2_JIT_COMPLETE);  // without it, matching is only slower
  code_->context = pcre2_match_context_create(nullptr);
  pcre2_set_match_limit(code_->context, kMatchLimit);
  pcre2_set_heap_limit(code_->context, kHeapLimitKib);
}

Pattern::~Pattern() = default;
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;

void Pattern::for_each_part(std::string_view text,
                            FunctionRef<void(std::string_view, bool)> part) const {
  while (!text.empty()) {
    const auto valid = valid_utf8_prefix(text);
    if (valid > 0) find_in_valid(text.substr(0, valid), part);
    if (valid < text.size()) part(text.substr(valid, 1), false);
    text.remove_prefix(std::min(valid + 1, text.size()));
  }
}

void Pattern::find_in_valid(std::string_view text,
                            FunctionRef<void(std::string_view, bool)> part) const {
  const std::unique_ptr<pcre2_match_data, MatchDataFree> data(
      pcre2_match_data_create_from_pattern(code_->code, nullptr));
  std::string buffer;
  const std::string_view read = is_literal_ ? text : with_stand_ins(text, buffer);
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
      fail(ErrorCode::data, "{}: the pattern needs too much work on this text: {}", where_,
           pattern_);
    }
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data.get());
    const bool is_empty = range[0] == range[1];
    if (range[0] > previous_end) {
      part(text.substr(previous_end, range[0] - previous_end), false);
    }
    // Behind a match there is no empty one.
    const bool is_behind = is_empty && search > 0 && range[0] == previous_end;
    if (!is_behind) part(text.substr(range[0], range[1] - range[0]), true);
    search = previous_end = range[1];
    if (is_empty) {  // look further from the next character
      do ++search;
      while (search < text.size() && (static_cast<unsigned char>(text[search]) & 0xC0) == 0x80);
    }
  }
  if (previous_end < text.size()) part(text.substr(previous_end), false);
}

PatternText pattern_text(const Section& step) {
  const Section pattern = step.section("pattern");
  const bool is_literal = pattern.find("String") != nullptr;
  return {pattern.string(is_literal ? "String" : "Regex"), is_literal};
}

Pattern read_pattern(const Section& step) {
  PatternText pattern = pattern_text(step);
  return {std::move(pattern.text), pattern.is_literal, step.path_of("pattern")};
}

std::string replaced(const Pattern& pattern, std::string_view text, std::string_view by) {
  std::string out;
  out.reserve(text.size());
  pattern.for_each_part(text,
                        [&](std::string_view part, bool is_match) { out += is_match ? by : part; });
  return out;
}

}  // namespace heddle
