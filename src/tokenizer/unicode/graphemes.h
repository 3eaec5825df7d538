#pragma once

#include <cstddef>
#include <string_view>

namespace heddle {

/// Length in bytes of the extended grapheme cluster that `text` (not empty) starts with: what
/// people take for one character (Unicode Standard Annex 29, version 16). Bytes that are not valid
/// UTF-8 are clusters of their own.
std::size_t grapheme_length(std::string_view text);

}  // namespace heddle
