#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "data/formats/input_kind.h"

namespace heddle {

/// How standard input is written where files are named.
inline constexpr const char* kStandardInput = "-";

struct InputFile {
  std::filesystem::path path = {};
  InputKind kind = InputKind::text;
  Packing packing = Packing::none;
  std::size_t size_bytes = 0;  ///< 0 for standard input
  std::int64_t modified_ns = 0;
  std::string head = {};  ///< of standard input: what was read of it to recognise it

  bool is_standard_input() const { return path == kStandardInput; }
};

/// "corpus.jsonl:12", or "corpus.parquet, row 12" where there are no lines.
std::string place_of(const InputFile& file, std::int64_t number);

struct Inputs {
  std::vector<InputFile> files;
  std::vector<std::filesystem::path> left_out;  ///< of folders: of no known name
};

/// Expands folders (recursively: files whose names say that they hold text or records, in the order
/// of their paths) and patterns (`*`, `?` and `[]` in names, `**` for folders; what a shell left
/// unexpanded), and recognises every file (input_kind.h); `-` is standard input. Throws Error(data)
/// for what does not exist, for folders and patterns without such files, and for files that are of
/// no kind that is read.
Inputs find_inputs(const std::vector<std::filesystem::path>& paths,
                   std::optional<InputKind> asked = {});

/// "3 files of the folder are of no known kind and left out: a.pdf, ..."; empty when there are
/// none.
std::string describe_left_out(const std::vector<std::filesystem::path>& files);

/// Throws Error(usage) when writing `out` would replace one of the files.
void refuse_to_replace(const std::vector<std::filesystem::path>& files,
                       const std::filesystem::path& out);

}  // namespace heddle
