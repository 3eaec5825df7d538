#include <algorithm>

#include "base/strings.h"
#include "tokenizer/patterns/behavior.h"
#include "tokenizer/patterns/pattern.h"
#include "tokenizer/pretokenizers/kinds.h"
#include "tokenizer/unicode/characters.h"

namespace heddle {
namespace {

/// Cuts at what a pattern finds, or at what lies between (`invert`). Bytes that are not valid UTF-8
/// become pieces of their own.
class SplitStep final : public PreTokenizer {
 public:
  SplitStep(Pattern pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  void split(Piece piece, PieceSink sink) const override {
    std::string_view text = piece.text;
    std::vector<TextPart> parts;
    while (!text.empty()) {
      const auto valid = valid_utf8_prefix(text);
      parts.clear();
      pattern_.for_each_part(text.substr(0, valid), [&](std::string_view part, bool is_match) {
        parts.emplace_back(part, is_match != invert_);
      });
      for_each_piece(parts, behavior_, [&](std::string_view part) { sink(piece.part(part)); });
      if (valid < text.size()) sink(piece.part(text.substr(valid, 1)));
      text.remove_prefix(std::min(valid + 1, text.size()));
    }
  }

  bool is_dear() const override { return true; }

 private:
  Pattern pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

/// The pieces of a scanner but for spaces.
class ScanWithoutSpaces final : public PreTokenizer {
 public:
  explicit ScanWithoutSpaces(Scan scan) : scan_(scan) {}

  void split(Piece piece, PieceSink sink) const override {
    const char* p = piece.text.data();
    const char* const end = p + piece.text.size();
    while (p < end) {
      const char* next = scan_(p, end);
      const auto lead = static_cast<unsigned char>(*p);
      const CharClass kind = lead < 0x80 ? kAsciiClass[lead] : class_of(decode_utf8(p, end).value);
      if (kind != CharClass::space) sink(piece.part({p, static_cast<std::size_t>(next - p)}));
      p = next;
    }
  }

  bool is_local_at_spaces() const override { return true; }

 private:
  Scan scan_;
};

}  // namespace

void add_split(const Section& step, PreTokenizerChain& chain) {
  const PatternText pattern = pattern_text(step);
  const SplitBehavior behavior = read_behavior(step);
  const bool invert = step.flag("invert", false);
  // These patterns match every character, so keeping all pieces and keeping the matches are one;
  // but for CLIP's, which does not match spaces.
  const bool drops_rest = behavior == SplitBehavior::removed && invert;
  const bool keeps_matches = behavior == SplitBehavior::isolated || drops_rest;
  const Scan scan = pattern.is_literal || !keeps_matches ? nullptr : scanner_for(pattern.text);
  if (scan != nullptr && drops_rest && pattern.text == kClipPattern) {
    chain.add(std::make_unique<ScanWithoutSpaces>(scan));
  } else if (scan != nullptr) {
    chain.add(scan);
  } else {
    chain.add(std::make_unique<SplitStep>(read_pattern(step), behavior, invert));
  }
}

void add_character_split(const Section& step, PreTokenizerChain& chain) {
  Pattern delimiter(step.character("delimiter"), true, step.path_of("delimiter"));
  chain.add(std::make_unique<SplitStep>(std::move(delimiter), SplitBehavior::removed, false));
}

}  // namespace heddle
