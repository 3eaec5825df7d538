#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/pretokenizers/scan.h"

namespace heddle {

struct WordCountOptions {
  Scan scan = scan_gpt2;                         ///< scan_gpt2 or scan_llama3
  std::vector<std::string> special_tokens = {};  ///< cut out of the texts
  int threads = 1;
  /// Called from one thread at a time with the bytes counted so far and in all.
  std::function<void(std::int64_t done, std::int64_t total)> progress = {};
};

/// How often each word (pre-token) occurs in the texts, sorted by its bytes: the same list for any
/// number of threads.
std::vector<std::pair<std::string, std::int64_t>> count_words(
    std::span<const std::string_view> texts, const WordCountOptions& options);

}  // namespace heddle
