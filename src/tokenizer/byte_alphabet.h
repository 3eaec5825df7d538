#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace heddle {

/// Byte-level vocabularies spell every byte as one printable character (GPT-2's alphabet): the
/// bytes 33-126, 161-172 and 174-255 as themselves, the other 68, ascending, as U+0100, U+0101, ...
/// Code-point order of the alphabet is the usual order of the 256 single-byte ids.

/// The character that stands for a byte, as a code point.
char32_t byte_character(unsigned char byte);
/// "Ġthe" for " the".
std::string spell_bytes(std::string_view bytes);
/// " the" for "Ġthe"; nothing when a character lies outside the alphabet.
std::optional<std::string> spelled_bytes(std::string_view spelling);

}  // namespace heddle
