#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "data/input_kind.h"

namespace heddle {

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

struct Inputs {
  std::vector<InputFile> files;
  std::vector<std::filesystem::path> left_out;  ///< of folders: neither .txt nor JSON lines by name
};

/// Expands folders (recursively: *.txt, *.jsonl and *.ndjson, in the order of their paths) and
/// recognises every file (input_kind.h). Throws Error(data) for what does not exist, for folders
/// without such files, and for files that are no text.
Inputs find_inputs(const std::vector<std::filesystem::path>& paths,
                   std::optional<InputKind> asked = {});

/// "3 files are neither .txt nor .jsonl and are left out: a.csv, ..."; empty when there are none.
std::string describe_left_out(const std::vector<std::filesystem::path>& files);

/// Throws Error(usage) when writing `out` would replace one of the files.
void refuse_to_replace(const std::vector<std::filesystem::path>& files,
                       const std::filesystem::path& out);

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
