#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "tokenizer/models/vocabulary.h"
#include "tokenizer/pretokenizers/scan.h"

namespace heddle {

class Section;
struct TokenizerBulk;

/// Makes tokens of single words. Immutable and thread-safe.
class TokenModel {
 public:
  virtual ~TokenModel() = default;
  /// Appends the ids of `word` (not empty). Depends on the word alone. Throws Error(data) for a
  /// text that the vocabulary cannot spell.
  virtual void encode(std::string_view word, std::vector<std::int32_t>& out) const = 0;
  /// Not null where cutting words at these ends changes no ids: shorter words are found more often
  /// in a cache.
  virtual Scan cut() const { return nullptr; }
  /// The same model for words of bytes in place of words in which each byte is spelled as a
  /// character (byte_alphabet.h); nothing where there is none. Ids are equal.
  virtual std::unique_ptr<const TokenModel> for_bytes() const { return nullptr; }
};

/// Reads `model` of a tokenizer.json, whose lists are in `bulk`, and fills the vocabulary, which
/// the model may refer to as long as it lives. Refuses with Error(data).
std::unique_ptr<const TokenModel> make_model(const Section& model, const TokenizerBulk& bulk,
                                             Vocabulary& vocabulary);

}  // namespace heddle
