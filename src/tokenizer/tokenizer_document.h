#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json_fwd.h"

namespace heddle {

/// The bulk of a tokenizer.json: hundreds of thousands of strings that are read straight into
/// vectors, in the order of the file.
struct TokenizerBulk {
  bool has_vocab = false, has_merges = false, has_pieces = false;
  std::vector<std::pair<std::string, std::int64_t>> vocab;
  std::vector<std::pair<std::string, double>> pieces;  ///< a vocabulary that is a list with scores
  std::vector<std::pair<std::string, std::string>>
      merges;  // accepts both forms, "a b" and ["a","b"]
};

/// Parses a tokenizer.json in one pass: `model.vocab` and `model.merges` go into `bulk`, everything
/// else is returned. Throws Error(data), starting with `where`, on malformed JSON, ids that are not
/// integers, pieces without a score, and merges that are not pairs.
Json read_tokenizer_document(std::string_view text, const std::string& where, TokenizerBulk& bulk);

}  // namespace heddle
