#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace heddle {

enum class InputKind {
  text,   ///< UTF-8 text, cut into documents by TextSplit
  jsonl,  ///< one JSON object per line, one of whose fields is the text
};

enum class TextSplit {
  whole_file,   ///< a file is a document
  blank_lines,  ///< paragraphs are documents, without the line breaks around them
  delimiter,    ///< documents stand between delimiters, which belong to none
};

/// How documents are found in files.
struct DocumentFormat {
  std::string field = "text";  ///< of JSONL objects
  TextSplit split = TextSplit::whole_file;
  std::string delimiter = {};  ///< for TextSplit::delimiter; not empty
};

struct InputFile {
  std::filesystem::path path = {};
  InputKind kind = InputKind::text;
  std::size_t size_bytes = 0;
  std::int64_t modified_ns = 0;
};

/// Expands folders (recursively: *.txt, *.jsonl and *.ndjson, in the order of their paths); a file
/// named directly is JSONL by its extension and text otherwise. Throws Error(data) for what does
/// not exist and for folders without such files.
std::vector<InputFile> find_inputs(const std::vector<std::filesystem::path>& paths);

/// The first position at or after `at` where a document may begin; content.size() if there is none.
std::size_t next_document(std::string_view content, InputKind kind, const DocumentFormat& format,
                          std::size_t at);

/// Reads the documents in [begin, end) of a file's content, both positions where a document may
/// begin. `take` gets each text, which may be empty and is valid UTF-8; `reject` gets an
/// Error(data) with file and line for each that is malformed, and may throw it.
void read_documents(const InputFile& file, std::string_view content, std::size_t begin,
                    std::size_t end, const DocumentFormat& format,
                    const std::function<void(std::string_view)>& take,
                    const std::function<void(const Error&)>& reject);

}  // namespace heddle
