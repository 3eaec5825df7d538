#include <algorithm>

#include "tokenizer/normalizers/kinds.h"
#include "tokenizer/patterns/behavior.h"
#include "tokenizer/patterns/pattern.h"

namespace heddle {
namespace {

class ReplaceNormalizer final : public Normalizer {
 public:
  ReplaceNormalizer(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

  void apply(NormalText& text) const override {
    std::string out;
    out.reserve(text.text.size());
    pattern_.for_each_part(text.text, [&](std::string_view part, bool is_match) {
      out += is_match ? content_ : part;
      if (out.empty() && !part.empty()) text.at_start = false;
    });
    text.text = std::move(out);
  }

 private:
  Pattern pattern_;
  std::string content_;
};

/// The same for a text that is searched for as it is, which takes no engine.
class LiteralNormalizer final : public Normalizer {
 public:
  LiteralNormalizer(std::string from, std::string to)
      : from_(std::move(from)), to_(std::move(to)) {}

  void apply(NormalText& text) const override {
    std::string_view rest = text.text;
    std::size_t found = rest.find(from_);
    if (found == std::string_view::npos) return;
    std::string out;
    out.reserve(rest.size() + rest.size() / 2);
    for (; found != std::string_view::npos; found = rest.find(from_)) {
      out += rest.substr(0, found);
      out += to_;
      rest.remove_prefix(found + from_.size());
      if (out.empty()) text.at_start = false;
    }
    out += rest;
    text.text = std::move(out);
  }

  bool is_local_at_spaces() const override {
    return from_.size() == 1 || (from_.find(' ') == std::string::npos && !has_ascii_letter());
  }

 private:
  bool has_ascii_letter() const {
    return std::ranges::any_of(
        from_, [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); });
  }

  std::string from_, to_;
};

/// The same for runs of whitespace, which are found without an engine too.
class SpacesNormalizer final : public Normalizer {
 public:
  explicit SpacesNormalizer(std::string to) : to_(std::move(to)) {}

  void apply(NormalText& text) const override {
    std::string out;
    out.reserve(text.text.size());
    const auto is_space = [](char32_t c) {
      return (c < 0x80 ? kAsciiClass[c] : class_of(c)) == CharClass::space;
    };
    for_each_run(text.text, is_space, [&](std::string_view run, bool is_match) {
      out += is_match ? to_ : run;
      if (out.empty()) text.at_start = false;
    });
    text.text = std::move(out);
  }

  bool is_local_at_spaces() const override { return true; }

 private:
  std::string to_;
};

}  // namespace

NormalizerPtr make_replace(const Section& step) {
  PatternText pattern = pattern_text(step);
  if (!pattern.is_literal && pattern.text == R"(\s+)") {
    return std::make_unique<SpacesNormalizer>(step.string("content"));
  }
  if (pattern.is_literal && !pattern.text.empty()) {
    return std::make_unique<LiteralNormalizer>(std::move(pattern.text), step.string("content"));
  }
  return std::make_unique<ReplaceNormalizer>(read_pattern(step), step.string("content"));
}

}  // namespace heddle
