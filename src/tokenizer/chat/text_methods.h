#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "tokenizer/chat/value.h"

namespace heddle::chat {

/// Whether Python takes a character for a blank.
bool is_space(std::string_view character);
/// The bytes of blanks at the start of a text.
std::size_t leading_spaces(std::string_view text);
std::string_view without_spaces_behind(std::string_view text);
/// form % values, of which templates use %s and %d.
std::string printed(const Value& form, const List& values);

std::string lowered(std::string_view text);
/// Letters that have one capital; ß, which has two, stays.
std::string raised(std::string_view text);

}  // namespace heddle::chat
