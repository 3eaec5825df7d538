#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace heddle {

enum class InputKind {
  text,      ///< UTF-8 text, cut into documents by TextSplit
  jsonl,     ///< one JSON object per line
  json,      ///< JSON objects in a list, or one after another, over any number of lines
  csv,       ///< a table whose first row names its columns (RFC 4180)
  tsv,       ///< the same with tabs
  parquet,   ///< Apache Parquet
  arrow,     ///< Apache Arrow: a file (Feather version 2) or a stream
  nanogpt,   ///< tokens: u16 and nothing else, or with the header of llm.c
  megatron,  ///< tokens: a .bin with an .idx beside it
};

/// As `--as` and data.format call them, in the order above.
const std::vector<std::string>& input_kind_names();
std::string_view name_of(InputKind kind);
/// Absent for the empty name; any other must be one of those.
std::optional<InputKind> input_kind_named(std::string_view name);

/// How a file is compressed as a whole.
enum class Packing { none, gzip, zstd };

/// What a file is.
struct Recognised {
  InputKind kind = InputKind::text;
  Packing packing = Packing::none;
  friend bool operator==(const Recognised&, const Recognised&) = default;
};

/// As many first bytes of a file are looked at.
inline constexpr std::size_t kHeadBytes = std::size_t{256} << 10;
inline constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

/// What a file is, by its first bytes and then by its name (without .gz and .zst): .txt is text,
/// .jsonl and .ndjson are JSON lines, .csv and .tsv tables, and so is JSON whatever begins as JSON
/// does. Bytes that no text has, of kinds that are not read, are refused by name with Error(data),
/// and so never taken for prose; so are files that are not what their name says. `asked` overrides
/// what names and JSON suggest, not what bytes say.
Recognised recognise(const std::filesystem::path& path, std::string_view head,
                     std::optional<InputKind> asked = {});

}  // namespace heddle
