#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>
#include <string_view>

#include "base/error.h"

namespace heddle {

/// Key order is kept, so that a file read and written again differs only where we changed it.
/// Headers that only name the type include base/json_fwd.h.
using Json = nlohmann::ordered_json;

/// Parses UTF-8 JSON. `where` (a file name) starts the message of the Error(data), which gives line
/// and column. Nesting deeper than 200 levels is refused, so hostile input cannot exhaust the
/// stack.
Json parse_json(std::string_view text, const std::string& where);
/// The error of a parser that stopped at `byte` (counted from 1) of `text`: "where:line:column: not
/// valid JSON: reason".
Error json_error(std::string_view text, const std::string& where, std::size_t byte,
                 std::string reason);
Json read_json_file(const std::filesystem::path& path);

}  // namespace heddle
