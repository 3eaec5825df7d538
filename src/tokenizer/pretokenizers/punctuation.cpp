#include "tokenizer/pretokenizers/character_steps.h"
#include "tokenizer/pretokenizers/kinds.h"

namespace heddle {

void add_punctuation(const Section& step, PreTokenizerChain& chain) {
  chain.add(
      std::make_unique<CharacterStep>([](char32_t c) { return has(c, CharFlag::punctuation); },
                                      read_behavior(step, SplitBehavior::isolated)));
}

}  // namespace heddle
