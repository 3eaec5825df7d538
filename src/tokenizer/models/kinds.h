#pragma once

#include "tokenizer/models/token_model.h"
#include "tokenizer/section.h"
#include "tokenizer/tokenizer_document.h"

namespace heddle {

using TokenModelPtr = std::unique_ptr<const TokenModel>;

/// One function for each type of `model`, in a file of its own; registry.cpp lists them.
TokenModelPtr make_bpe(const Section& model, const TokenizerBulk& bulk, Vocabulary& vocabulary);
TokenModelPtr make_unigram(const Section& model, const TokenizerBulk& bulk, Vocabulary& vocabulary);
TokenModelPtr make_word_level(const Section& model, const TokenizerBulk& bulk,
                              Vocabulary& vocabulary);
TokenModelPtr make_word_piece(const Section& model, const TokenizerBulk& bulk,
                              Vocabulary& vocabulary);

/// Fills the vocabulary from a list of tokens with ids.
void read_vocabulary(const Section& model, const TokenizerBulk& bulk, Vocabulary& vocabulary);

}  // namespace heddle
