#include "tokenizer/patterns/stand_ins.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <memory>
#include <unordered_map>

#include "base/check.h"
#include "tokenizer/unicode/characters.h"

namespace heddle {
namespace {

/// In the order of Category.
constexpr std::array kCategories = {"Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd",
                                    "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm",
                                    "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co"};

bool is_surrogate(char32_t c) { return c >= 0xD800 && c < 0xE000; }

/// Calls `run` with the text of every run of characters of one category of PCRE2's, in order.
template <class Run>
void for_each_run(std::string_view text, Run run) {
  std::string pattern;
  for (const char* category : kCategories) {
    pattern += (pattern.empty() ? "" : "|") + std::string("(\\p{") + category + "}+)";
  }
  int error = 0;
  PCRE2_SIZE offset = 0;
  const std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF, &error,
                    &offset, nullptr),
      &pcre2_code_free);
  HEDDLE_CHECK(code != nullptr, "PCRE2 knows no categories: error {}", error);
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
      pcre2_match_data_create_from_pattern(code.get(), nullptr), &pcre2_match_data_free);
  std::size_t at = 0;
  while (at < text.size()) {
    const int groups = pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()),
                                   text.size(), at, PCRE2_NO_UTF_CHECK, data.get(), nullptr);
    HEDDLE_CHECK(groups > 0, "PCRE2 finds no category at {}: {}", at, groups);
    const std::size_t end = pcre2_get_ovector_pointer(data.get())[1];
    // The last group that is set is the only one.
    run(text.substr(at, end - at), groups - 2);
    at = end;
  }
}

class StandIns {
 public:
  StandIns() {
    std::string all;
    for (char32_t c = 0; c < 0x110000; ++c) {
      if (!is_surrogate(c)) append_utf8(c, all);
    }
    std::array<std::array<char32_t, 5>, kCategories.size()> nearest{};  // by category and length
    for_each_run(all, [&](std::string_view run, int category) {
      while (!run.empty()) {
        const CodePoint c = decode_utf8(run.data(), run.data() + run.size());
        run.remove_prefix(static_cast<std::size_t>(c.length));
        const int right = static_cast<int>(category_of(c.value));
        char32_t& near =
            nearest[static_cast<std::size_t>(right)][static_cast<std::size_t>(c.length)];
        if (right == category) {
          near = c.value;
        } else if (near != 0) {
          put(c.value, near);
        }
      }
    });
  }

  char32_t of(char32_t c) const {
    if (!pages_[c >> 8]) return c;
    const auto found = stand_ins_.find(c);
    return found == stand_ins_.end() ? c : found->second;
  }

 private:
  void put(char32_t c, char32_t stand_in) {
    stand_ins_.emplace(c, stand_in);
    pages_[c >> 8] = true;
  }

  std::unordered_map<char32_t, char32_t> stand_ins_;
  std::array<bool, 0x1100> pages_{};
};

}  // namespace

std::string_view with_stand_ins(std::string_view text, std::string& buffer) {
  static const StandIns stand_ins;
  bool is_copied = false;
  const char* const begin = text.data();
  const char* const end = begin + text.size();
  for (const char* p = begin; p < end;) {
    if (static_cast<signed char>(*p) >= 0) {
      ++p;
      continue;
    }
    const CodePoint c = decode_utf8(p, end);
    if (const char32_t other = stand_ins.of(c.value); other != c.value) {
      if (!is_copied) buffer.assign(text);
      is_copied = true;
      std::string bytes;
      append_utf8(other, bytes);
      buffer.replace(static_cast<std::size_t>(p - begin), bytes.size(), bytes);
    }
    p += c.length;
  }
  return is_copied ? std::string_view(buffer) : text;
}

}  // namespace heddle
