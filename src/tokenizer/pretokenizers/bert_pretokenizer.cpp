#include "tokenizer/pretokenizers/character_steps.h"
#include "tokenizer/pretokenizers/kinds.h"

namespace heddle {

/// Words between whitespace, with every punctuation character alone.
void add_bert_pretokenizer(const Section&, PreTokenizerChain& chain) {
  chain.add(std::make_unique<CharacterStep>(
      [](char32_t c) { return class_of(c) == CharClass::space; }, SplitBehavior::removed));
  chain.add(std::make_unique<CharacterStep>(
      [](char32_t c) { return has(c, CharFlag::punctuation); }, SplitBehavior::isolated));
}

}  // namespace heddle
