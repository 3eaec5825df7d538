#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "tokenizer/chat/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace heddle {

/// The bytes of `text` that each of its tokens stands for. Nothing where they do not spell it: a
/// normalizer has changed it, or something in it is unknown.
std::optional<std::vector<ChatTemplate::Stretch>> token_places(const Tokenizer& tokenizer,
                                                               std::string_view text,
                                                               std::span<const std::int32_t> ids);

}  // namespace heddle
