#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include "data/tokenize.h"
#include "tokenizer/tokenizer.h"

namespace heddle {

/// Encoders for tokenize(), one per thread. The tokenizer's tables are shared.
std::function<EncodeText()> encoders(const Tokenizer& tokenizer, bool parse_special);

/// Where the tokenizer lets documents be cut (DocumentFormat::cut).
std::function<std::size_t(std::string_view)> cuts_of(const Tokenizer& tokenizer);

/// What token files made with this tokenizer carry.
TokenFileOrigin origin_of(const Tokenizer& tokenizer);

/// The token that ends documents: "auto" is what the tokenizer's files call its eos_token, else one
/// of the names in use, and none where there is none of these; "none" is none; anything else is a
/// token, and an Error(usage) when the tokenizer has no such token.
std::optional<std::int32_t> find_end_token(const Tokenizer& tokenizer, std::string_view name);

}  // namespace heddle
