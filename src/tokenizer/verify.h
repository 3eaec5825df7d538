#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace heddle {

struct TokenizerFailure {
  std::string text;
  std::string expected, got;  ///< ids as "[1, 2]", or the decoded text
};

/// How a tokenizer compares with what the reference implementation made of the same texts.
struct TokenizerReport {
  std::int64_t cases = 0;
  std::int64_t passed = 0;                 ///< text to ids
  std::int64_t decode_passed = 0;          ///< ids to text, at once and token by token
  std::vector<TokenizerFailure> failures;  ///< the first few

  bool has_corpus = false;  ///< the cases name a corpus
  std::int64_t corpus_tokens = 0;
  std::string corpus_sha256;  ///< of the ids as little-endian u32
  bool corpus_equal = false;
  double mb_per_second = 0;  ///< encoding the corpus on one thread, with nothing cached before

  bool ok() const {
    return passed == cases && decode_passed == cases && (!has_corpus || corpus_equal);
  }
};

/// Runs the cases file: `cases` with text, ids and decoded; `template_cases` (text and ids with
/// what the post-processor adds); `generated` and `code_points`, hashes of what becomes of groups
/// of texts that are made here (generated_texts.h), where a group counts as a case; and a corpus,
/// either embedded (`corpus`, `corpus_tokens`, `corpus_sha256_of_le_u32`) or tinyshakespeare
/// (`shakespeare_...`), read from `corpus` or from
/// ../../data/tinyshakespeare.txt beside the cases' folder. Throws Error(data) when a file cannot
/// be read or does not have that form.
TokenizerReport verify_tokenizer(const Tokenizer& tokenizer, const std::filesystem::path& cases,
                                 const std::optional<std::filesystem::path>& corpus = {});

}  // namespace heddle
