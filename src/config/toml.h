#pragma once

// The one place that includes toml++, with the settings all its users must share. It is heavy:
// never include this from a header.

#include <string>
#include <string_view>

namespace heddle::config {

/// Some malformed text reaches an assertion of toml++ ([[.a]] does): then it is malformed, and no
/// reason to end the program.
struct TomlAssertion {};
[[noreturn]] void toml_assertion_failed();

}  // namespace heddle::config

#undef NDEBUG  // or toml++ would assume what it asserts
#define TOML_ASSERT(expr) \
  (static_cast<bool>(expr) ? static_cast<void>(0) : ::heddle::config::toml_assertion_failed())
#define TOML_HEADER_ONLY 0  // the parser is compiled once, in toml.cpp
// Our files nest three levels deep; the limit bounds the recursion on hostile input.
#define TOML_MAX_NESTED_VALUES 16
#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

namespace heddle::config {

/// Parses text of any origin. Throws Error(usage) "name:line:column: not valid TOML: reason".
toml::table parse_toml(std::string_view text, const std::string& name);

}  // namespace heddle::config
