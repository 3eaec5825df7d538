#include "data/formats/inputs.h"

#include <glob.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>

#include "base/error.h"

namespace heddle {
namespace fs = std::filesystem;
namespace {

std::string read_head(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(ErrorCode::data, "cannot read {}: {}", path.string(), std::strerror(errno));
  std::string head(kHeadBytes, '\0');
  file.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<std::size_t>(file.gcount()));
  return head;
}

std::string read_standard_head() {
  std::string head(kHeadBytes, '\0');
  std::size_t filled = 0;
  while (filled < head.size()) {
    const ssize_t got = ::read(STDIN_FILENO, head.data() + filled, head.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(ErrorCode::data, "cannot read standard input: {}", std::strerror(errno));
    if (got == 0) break;
    filled += static_cast<std::size_t>(got);
  }
  head.resize(filled);
  return head;
}

InputFile describe_standard_input(std::optional<InputKind> asked) {
  InputFile file{.path = kStandardInput, .head = read_standard_head()};
  const Recognised what = recognise(file.path, file.head, asked);
  file.kind = what.kind;
  file.packing = what.packing;
  if (file.kind == InputKind::parquet || file.kind == InputKind::arrow ||
      file.kind == InputKind::megatron || file.kind == InputKind::nanogpt) {
    throw Error(ErrorCode::data,
                fmt::format("standard input is of kind {}, which is read at many places",
                            name_of(file.kind)),
                "give the file itself");
  }
  return file;
}

InputFile describe(const fs::path& path, std::optional<InputKind> asked) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  if (error) fail(ErrorCode::data, "cannot read {}: {}", path.string(), error.message());
  const auto modified = fs::last_write_time(path, error);
  if (error) fail(ErrorCode::data, "cannot read {}: {}", path.string(), error.message());
  const auto since_epoch =
      std::chrono::duration_cast<std::chrono::nanoseconds>(modified.time_since_epoch());
  const Recognised what = recognise(path, read_head(path), asked);
  return {.path = path,
          .kind = what.kind,
          .packing = what.packing,
          .size_bytes = size,
          .modified_ns = since_epoch.count()};
}

/// Whether a file of a folder is meant to be read, by its name. Of .json those with records only:
/// most other ones say something about the data.
bool is_read_in_folders(const fs::path& path) {
  static constexpr std::array kNames = {".txt", ".jsonl", ".ndjson", ".csv",     ".tsv", ".parquet",
                                        ".pq",  ".arrow", ".arrows", ".feather", ".ipc"};
  const fs::path last = path.extension();
  const bool is_packed = last == ".gz" || last == ".zst" || last == ".zstd";
  const fs::path extension = is_packed ? path.stem().extension() : last;
  if (std::find(kNames.begin(), kNames.end(), extension) != kNames.end()) return true;
  if (extension != ".json") return false;
  const std::string head = read_head(path);
  if (is_packed) return true;
  const std::size_t first = head.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return false;
  return head[first] == '[' || head.find("}\n", first) < head.find('\n', first);
}

std::vector<fs::path> files_below(const fs::path& folder, std::vector<fs::path>& left_out) {
  std::vector<fs::path> found;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error), end;
  for (; !error && entry != end; entry.increment(error)) {
    if (!entry->is_regular_file()) continue;
    (is_read_in_folders(entry->path()) ? found : left_out).push_back(entry->path());
  }
  if (error) fail(ErrorCode::data, "cannot read folder {}: {}", folder.string(), error.message());
  if (found.empty()) {
    throw Error(
        ErrorCode::data,
        fmt::format("no text, JSON, CSV, Parquet or Arrow file in folder {}", folder.string()),
        "name the files themselves, or another folder");
  }
  std::sort(found.begin(), found.end());
  return found;
}

/// What a pattern stands for, in order; the path itself when it is none.
std::vector<fs::path> expand(const fs::path& path) {
  const bool is_pattern = path.native().find_first_of("*?[") != std::string::npos;
  if (!is_pattern || fs::exists(path)) return {path};
  glob_t matches{};
  const int status = ::glob(path.c_str(), GLOB_ERR, nullptr, &matches);
  std::vector<fs::path> paths(matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
  ::globfree(&matches);
  if (status == 0) return paths;
  throw Error(ErrorCode::data, fmt::format("no file is named like {}", path.string()),
              "check the pattern, and the folder in which heddle is started");
}

}  // namespace

std::string place_of(const InputFile& file, std::int64_t number) {
  const bool has_lines = file.kind == InputKind::text || file.kind == InputKind::jsonl ||
                         file.kind == InputKind::json || file.kind == InputKind::csv ||
                         file.kind == InputKind::tsv;
  return fmt::format("{}{}{}", file.path.string(), has_lines ? ":" : ", row ", number);
}

Inputs find_inputs(const std::vector<fs::path>& paths, std::optional<InputKind> asked) {
  if (std::count(paths.begin(), paths.end(), fs::path(kStandardInput)) > 1) {
    throw Error(ErrorCode::usage, "standard input (-) is given twice", "give it once");
  }
  Inputs inputs;
  for (const fs::path& given : paths) {
    if (given == kStandardInput) {
      inputs.files.push_back(describe_standard_input(asked));
      continue;
    }
    for (const fs::path& path : expand(given)) {
      if (!fs::is_directory(path)) {
        inputs.files.push_back(describe(path, asked));
        continue;
      }
      for (const fs::path& file : files_below(path, inputs.left_out)) {
        inputs.files.push_back(describe(file, asked));
      }
    }
  }
  return inputs;
}

std::string describe_left_out(const std::vector<fs::path>& files) {
  if (files.empty()) return "";
  constexpr std::size_t kNamed = 4;
  std::string names;
  for (std::size_t i = 0; i < std::min(kNamed, files.size()); ++i) {
    names += (i == 0 ? "" : ", ") + files[i].string();
  }
  return fmt::format("{} of the folder{} of no known name and left out: {}{}",
                     files.size() == 1 ? "1 file" : fmt::format("{} files", files.size()),
                     files.size() == 1 ? " is" : " are", names,
                     files.size() > kNamed ? ", ..." : "");
}

void refuse_to_replace(const std::vector<fs::path>& files, const fs::path& out) {
  for (const fs::path& file : files) {
    std::error_code error;
    if (!fs::equivalent(file, out, error)) continue;
    throw Error(
        ErrorCode::usage,
        fmt::format("writing {} would replace {}, which is read", out.string(), file.string()),
        "give another --out");
  }
}

}  // namespace heddle
