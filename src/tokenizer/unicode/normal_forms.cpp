#include "tokenizer/unicode/normal_forms.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <unordered_map>
#include <vector>

#include "base/strings.h"
#include "tokenizer/unicode/characters.h"

namespace heddle {
namespace {

#include "tokenizer/unicode/normal_form_tables.inc"

// Hangul syllables are composed by arithmetic (Unicode standard, 3.12).
constexpr char32_t kSyllables = 0xAC00, kLeads = 0x1100, kVowels = 0x1161, kTails = 0x11A7;
constexpr char32_t kLeadCount = 19, kVowelCount = 21, kTailCount = 28;
constexpr char32_t kSyllableCount = kLeadCount * kVowelCount * kTailCount;

struct Decomposition {
  bool is_compatible;
  std::vector<char32_t> parts;
};

std::uint64_t pair_key(char32_t first, char32_t second) {
  return static_cast<std::uint64_t>(first) << 32 | second;
}

struct Tables {
  Tables() {
    for (const std::uint32_t* p = std::begin(kDecompositions); p < std::end(kDecompositions);) {
      const std::uint32_t kind = p[1] >> 8, length = p[1] & 255;
      decompositions[*p] = {kind == 2, {p + 2, p + 2 + length}};
      if (kind == 0 && length == 2) compositions[pair_key(p[2], p[3])] = *p;
      p += 2 + length;
    }
    constexpr std::size_t kRuns = std::size(kClassRuns) / 2;
    for (std::size_t i = 0; i < kRuns; ++i) {
      if (kClassRuns[2 * i + 1] == 0) continue;
      const char32_t end = i + 1 < kRuns ? kClassRuns[2 * i + 2] : 0x110000;
      for (char32_t c = kClassRuns[2 * i]; c < end; ++c) {
        classes[c] = static_cast<std::uint8_t>(kClassRuns[2 * i + 1]);
      }
    }
  }

  std::unordered_map<char32_t, Decomposition> decompositions;
  std::unordered_map<std::uint64_t, char32_t> compositions;
  std::unordered_map<char32_t, std::uint8_t> classes;
};

const Tables& tables() {
  static const Tables all;
  return all;
}

struct Mark {
  char32_t value;
  std::uint8_t combining_class;
};

std::uint8_t combining_class(char32_t c) {
  if (c < 0x300) return 0;
  const auto at = tables().classes.find(c);
  return at == tables().classes.end() ? std::uint8_t{0} : at->second;
}

void decompose(char32_t c, bool compatible, std::vector<Mark>& out) {
  if (c >= kSyllables && c < kSyllables + kSyllableCount) {
    const char32_t index = c - kSyllables, tail = index % kTailCount;
    out.push_back({kLeads + index / (kVowelCount * kTailCount), 0});
    out.push_back({kVowels + index % (kVowelCount * kTailCount) / kTailCount, 0});
    if (tail != 0) out.push_back({kTails + tail, 0});
    return;
  }
  const auto at = tables().decompositions.find(c);
  if (at == tables().decompositions.end() || (at->second.is_compatible && !compatible)) {
    out.push_back({c, combining_class(c)});
    return;
  }
  for (const char32_t part : at->second.parts) decompose(part, compatible, out);
}

/// Runs of marks become ascending in their class; starters (class 0) stay where they are.
void put_in_order(std::vector<Mark>& marks) {
  const auto is_starter = [](const Mark& mark) { return mark.combining_class == 0; };
  for (auto begin = marks.begin(); begin != marks.end();) {
    begin = std::find_if_not(begin, marks.end(), is_starter);
    const auto end = std::find_if(begin, marks.end(), is_starter);
    std::stable_sort(begin, end, [](const Mark& a, const Mark& b) {
      return a.combining_class < b.combining_class;
    });
    begin = end;
  }
}

/// The one character that stands for both, or 0.
char32_t compose_pair(char32_t first, char32_t second) {
  if (first >= kLeads && first < kLeads + kLeadCount && second >= kVowels &&
      second < kVowels + kVowelCount) {
    return kSyllables + ((first - kLeads) * kVowelCount + (second - kVowels)) * kTailCount;
  }
  if (first >= kSyllables && first < kSyllables + kSyllableCount &&
      (first - kSyllables) % kTailCount == 0 && second > kTails && second < kTails + kTailCount) {
    return first + (second - kTails);
  }
  const auto at = tables().compositions.find(pair_key(first, second));
  return at == tables().compositions.end() ? 0 : at->second;
}

void compose(std::vector<Mark>& marks) {
  std::size_t kept = 0;
  std::size_t starter = marks.size();  // the last starter among those kept; none yet
  for (std::size_t i = 0; i < marks.size(); ++i) {
    const Mark mark = marks[i];
    if (starter < marks.size()) {
      const bool adjoins = kept == starter + 1;
      const bool is_blocked = !adjoins && (marks[kept - 1].combining_class == 0 ||
                                           marks[kept - 1].combining_class >= mark.combining_class);
      const char32_t whole = is_blocked ? 0 : compose_pair(marks[starter].value, mark.value);
      if (whole != 0) {
        marks[starter].value = whole;
        continue;
      }
    }
    if (mark.combining_class == 0) starter = kept;
    marks[kept++] = mark;
  }
  marks.resize(kept);
}

void append_form(std::string_view valid, NormalForm form, std::vector<Mark>& marks,
                 std::string& out) {
  marks.clear();
  const bool compatible = form == NormalForm::nfkc || form == NormalForm::nfkd;
  for_each_character(valid, [&](char32_t c, std::string_view) { decompose(c, compatible, marks); });
  put_in_order(marks);
  if (form == NormalForm::nfc || form == NormalForm::nfkc) compose(marks);
  for (const Mark& mark : marks) append_utf8(mark.value, out);
}

}  // namespace

std::string to_normal_form(std::string_view text, NormalForm form) {
  // ASCII never composes with what precedes it, so only runs of other characters, each with the one
  // ASCII character before it (a base letter, perhaps), need work.
  const auto is_ascii = [&](std::size_t i) { return static_cast<signed char>(text[i]) >= 0; };
  std::string out;
  out.reserve(text.size());
  std::vector<Mark> marks;
  std::size_t at = 0;
  while (at < text.size()) {
    std::size_t run = at;
    while (run < text.size() && is_ascii(run)) ++run;
    std::size_t end = run;
    while (end < text.size() && !is_ascii(end)) ++end;
    if (run < end && run > at) --run;
    out.append(text, at, run - at);
    while (run < end) {
      const auto valid = valid_utf8_prefix(text.substr(run, end - run));
      if (valid > 0) append_form(text.substr(run, valid), form, marks, out);
      run += valid;
      if (run < end) out.push_back(text[run++]);
    }
    at = end;
  }
  return out;
}

}  // namespace heddle
