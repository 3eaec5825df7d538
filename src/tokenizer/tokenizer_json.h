#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/decoders/decoder.h"
#include "tokenizer/models/token_model.h"
#include "tokenizer/normalizers/normalizer.h"
#include "tokenizer/pretokenizers/pretokenizer.h"
#include "tokenizer/processors/post_processor.h"

namespace heddle {

/// What a tokenizer.json asks for: the stages that a text goes through, in their order.
struct TokenizerParts {
  std::vector<AddedToken> added;
  NormalizerList normalizers;
  PreTokenizerChain pretokenizer;
  std::unique_ptr<Vocabulary> vocabulary = std::make_unique<Vocabulary>();
  std::unique_ptr<const TokenModel> model;  ///< refers to the vocabulary
  Surroundings around;
  DecoderList decoders;

  /// Tokens are bytes that are spelled as characters (byte_alphabet.h), in encoding and decoding.
  bool is_byte_level = false;
};

/// Reads a Hugging Face tokenizer.json. What the file asks for and we do not do (another model,
/// normalizer, pre-tokenizer, post-processor or decoder, dropout, ...) is refused by name with
/// Error(data), which starts with `where`. `truncation` and `padding`, which concern batches, are
/// ignored, with a line that says so.
TokenizerParts parse_tokenizer_json(std::string_view text, const std::string& where);

}  // namespace heddle
