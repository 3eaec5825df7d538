#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace heddle {

enum class PretokenizerStyle { gpt2, llama3 };

inline constexpr std::string_view kCountingWords = "counting words";    // in bytes
inline constexpr std::string_view kLearningMerges = "learning merges";  // in tokens

struct BpeTrainProgress {
  std::string_view stage;
  std::int64_t done, total;
};

struct BpeTrainOptions {
  std::int64_t vocab_size = 0;  ///< with the special tokens and the 256 bytes
  PretokenizerStyle pretokenizer = PretokenizerStyle::gpt2;
  std::vector<std::string> special_tokens = {};  ///< get the first ids
  std::int64_t min_frequency = 2;                ///< a pair seen less often is not merged
  int threads = 1;
  std::function<void(const BpeTrainProgress&)> progress =
      {};  ///< called often, one thread at a time
};

struct BpeTrainResult {
  std::string json;         ///< the tokenizer.json
  std::int64_t vocab_size;  ///< smaller than asked for when the text has no more pairs to merge
  std::int64_t words;       ///< distinct words in the texts
};

/// Learns a byte-level BPE (models.md 10.9): ids are the special tokens, the 256 bytes in alphabet
/// order, then merges, always of the most frequent pair, of equal ones that with the smaller ids.
/// Special tokens are cut out of the texts, and no merge ever spells one. The result depends on the
/// texts and options only, not on threads. Throws Error(usage) for options that make no sense and
/// Error(data) when the texts are empty.
BpeTrainResult train_bpe(std::span<const std::string_view> texts, const BpeTrainOptions& options);

}  // namespace heddle
