#pragma once

#include <string>
#include <string_view>

namespace heddle {

enum class NormalForm { nfc, nfd, nfkc, nfkd };

/// A normal form of Unicode, with the decompositions that the reference library has (those of
/// Unicode 9; later characters stand for themselves). Bytes that are not valid UTF-8 pass through
/// unchanged.
std::string to_normal_form(std::string_view text, NormalForm form);

}  // namespace heddle
