#pragma once

#include <string>

namespace heddle {

/// A regular expression for Oniguruma, rewritten for PCRE2. Escapes, groups and class operators
/// that mean something else there (or nothing) are refused by name with Error(data), which `where`
/// starts.
std::string from_oniguruma(const std::string& pattern, const std::string& where);

}  // namespace heddle
