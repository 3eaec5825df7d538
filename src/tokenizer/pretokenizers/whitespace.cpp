#include "tokenizer/pretokenizers/character_steps.h"
#include "tokenizer/pretokenizers/kinds.h"

namespace heddle {
namespace {

/// Runs of word characters, and runs of what is neither word nor space.
class WhitespaceStep final : public PreTokenizer {
 public:
  void split(Piece piece, PieceSink sink) const override {
    std::string_view run;
    bool run_is_word = false;
    const auto flush = [&] {
      if (!run.empty()) sink(piece.part(run));
      run = {};
    };
    for_each_character(piece.text, [&](char32_t c, std::string_view bytes) {
      const bool is_word = has(c, CharFlag::word);
      if (!is_word && class_of(c) == CharClass::space) return flush();
      if (is_word != run_is_word) flush();
      run_is_word = is_word;
      run = run.empty() ? bytes : std::string_view(run.data(), run.size() + bytes.size());
    });
    flush();
  }
  bool is_local_at_spaces() const override { return true; }
};

}  // namespace

void add_whitespace(const Section&, PreTokenizerChain& chain) {
  chain.add(std::make_unique<WhitespaceStep>());
}

void add_whitespace_split(const Section&, PreTokenizerChain& chain) {
  chain.add(std::make_unique<CharacterStep>(
      [](char32_t c) { return (c < 0x80 ? kAsciiClass[c] : class_of(c)) == CharClass::space; },
      SplitBehavior::removed));
}

}  // namespace heddle
