#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace heddle {

/// The tokens of a tokenizer that a model's config names; absent: it has none.
struct SpecialTokens {
  std::optional<std::int32_t> bos, eos, pad;
};

/// eos is what `end_token` means to find_end_token. bos and pad are what the tokenizer's files call
/// so; else bos is what the tokenizer puts in front of texts, and both are special tokens with one
/// of the usual names; <|endoftext|> is bos and eos, as in GPT-2.
SpecialTokens special_tokens(const Tokenizer& tokenizer, std::string_view end_token = "auto");

/// The tokens behind which a model folder wants generation to stop: `eos_token_id` (a number or a
/// list) of generation_config.json and of config.json, or where neither says, the tokenizer's own
/// end token.
/// Error(data) names the file whose eos_token_id is something else.
std::vector<std::int32_t> end_tokens(const std::filesystem::path& folder,
                                     const Tokenizer& tokenizer);

}  // namespace heddle
