#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/pretokenizer.h"

namespace heddle {

/// What a tokenizer.json asks for, checked and translated to bytes.
struct TokenizerParts {
  std::vector<std::string> tokens;  ///< bytes by id; an id without a token is empty
  std::vector<bool> is_word;        ///< by id: an entry of the vocabulary that merges can spell
  std::array<std::int32_t, 256> byte_ids{};
  std::vector<BpeMerge> merges;
  bool ignore_merges = false;

  std::vector<AddedToken> added;
  bool normalizes_nfc = false;
  PreTokenizer pretokenizer;
  std::vector<std::int32_t> prefix, suffix;  ///< what the post-processor puts around a text
};

/// Reads a Hugging Face tokenizer.json with a byte-level BPE. Everything the file asks for that we
/// do not do (another model, normalizer, pre-tokenizer, post-processor or decoder, dropout, byte
/// fallback, truncation, ...) is refused by name with Error(data), which starts with `where`.
TokenizerParts parse_tokenizer_json(std::string_view text, const std::string& where);

}  // namespace heddle
