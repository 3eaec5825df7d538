#pragma once

#include "tokenizer/pretokenizers/pretokenizer.h"
#include "tokenizer/section.h"

namespace heddle {

/// One function for each kind of `pre_tokenizer`, in a file of its own; registry.cpp lists them.
void add_bert_pretokenizer(const Section& step, PreTokenizerChain& chain);
void add_byte_level(const Section& step, PreTokenizerChain& chain);
void add_character_split(const Section& step, PreTokenizerChain& chain);
void add_digits(const Section& step, PreTokenizerChain& chain);
void add_fixed_length(const Section& step, PreTokenizerChain& chain);
void add_metaspace(const Section& step, PreTokenizerChain& chain);
void add_punctuation(const Section& step, PreTokenizerChain& chain);
void add_split(const Section& step, PreTokenizerChain& chain);
void add_whitespace(const Section& step, PreTokenizerChain& chain);
void add_whitespace_split(const Section& step, PreTokenizerChain& chain);

}  // namespace heddle
