#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

namespace heddle {

enum class InputKind {
  text,   ///< UTF-8 text, cut into documents by TextSplit
  jsonl,  ///< one JSON object per line, one of whose fields is the text
};

/// What a file is, by its first bytes and then by its name: .txt is text, .jsonl and .ndjson are
/// JSON lines, and so is whatever begins with a line that is a JSON object. What is not text, or is
/// text of another form (JSON, tables), is refused by name with Error(data), and so never taken for
/// prose. `asked` overrides what names and JSON suggest, not what bytes say.
InputKind recognise_input(const std::filesystem::path& path, std::optional<InputKind> asked = {});

/// Where the text of a file begins: after its UTF-8 byte order mark, if it has one.
std::size_t text_begin(std::string_view content);

}  // namespace heddle
