#include "data/documents.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "base/check.h"
#include "base/strings.h"
#include "data/jsonl_field.h"

namespace heddle {
namespace fs = std::filesystem;
namespace {

constexpr const char* kFaultHint =
    "correct it, or leave such documents out with `heddle tokenize --on-error skip`";

bool is_read_in_folders(const fs::path& path) {
  const fs::path extension = path.extension();
  return extension == ".txt" || extension == ".jsonl" || extension == ".ndjson";
}

InputFile describe(const fs::path& path, std::optional<InputKind> asked) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  if (error) fail(ErrorCode::data, "cannot read {}: {}", path.string(), error.message());
  const auto modified = fs::last_write_time(path, error);
  if (error) fail(ErrorCode::data, "cannot read {}: {}", path.string(), error.message());
  const auto since_epoch =
      std::chrono::duration_cast<std::chrono::nanoseconds>(modified.time_since_epoch());
  return {.path = path,
          .kind = recognise_input(path, asked),
          .size_bytes = size,
          .modified_ns = since_epoch.count()};
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
    throw Error(ErrorCode::data,
                fmt::format("no .txt or .jsonl file in folder {}", folder.string()),
                "name the files themselves, or another folder");
  }
  std::sort(found.begin(), found.end());
  return found;
}

/// [begin, end) of a line without its line break, and where the next one begins.
struct Line {
  std::size_t begin, end, next;
};

Line line_at(std::string_view content, std::size_t begin, std::size_t limit) {
  const std::size_t newline = content.find('\n', begin);
  if (newline == std::string_view::npos || newline >= limit) return {begin, limit, limit};
  return {begin, newline, newline + 1};
}

/// Reads one file's range; the position of a fault becomes a line number only when there is one.
class Reader {
 public:
  Reader(const InputFile& file, std::string_view content, const DocumentFormat& format,
         const std::function<void(std::string_view)>& take,
         const std::function<void(const Error&)>& reject)
      : file_(file), content_(content), format_(format), take_(take), reject_(reject) {}

  void read_lines(std::size_t begin, std::size_t end) {
    while (begin < end) {
      const Line line = line_at(content_, begin, end);
      begin = line.next;
      const std::string_view text = content_.substr(line.begin, line.end - line.begin);
      if (trim(text).empty()) continue;
      if (!check_utf8(text, line.begin)) continue;
      const Result<std::string> field = jsonl_field(text, format_.field);
      field ? take_(*field) : fault(line.begin, field.error().message());
    }
  }

  void read_paragraphs(std::size_t begin, std::size_t end) {
    std::size_t first = begin, last = begin;  // the paragraph so far
    while (begin < end) {
      const Line line = line_at(content_, begin, end);
      if (trim(content_.substr(line.begin, line.end - line.begin)).empty()) {
        take_text(first, last);
        first = last = line.next;
      } else {
        last = line.end;
      }
      begin = line.next;
    }
    take_text(first, last);
  }

  void read_delimited(std::size_t begin, std::size_t end) {
    while (begin < end) {
      const std::size_t found = std::min(content_.find(format_.delimiter, begin), end);
      take_text(begin, found);
      begin = found + format_.delimiter.size();
    }
  }

  void take_text(std::size_t begin, std::size_t end) {
    const std::string_view text = content_.substr(begin, end - begin);
    if (trim(text).empty()) return;
    if (check_utf8(text, begin)) take_(text);
  }

 private:
  bool check_utf8(std::string_view text, std::size_t at) {
    const std::size_t valid = valid_utf8_prefix(text);
    if (valid == text.size()) return true;
    fault(at + valid,
          fmt::format("invalid UTF-8 (byte 0x{:02x})", static_cast<unsigned char>(text[valid])));
    return false;
  }

  void fault(std::size_t at, const std::string& what) {
    const std::string_view before = content_.substr(0, at);
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    reject_(Error(ErrorCode::data, fmt::format("{}:{}: {}", file_.path.string(), line, what),
                  kFaultHint));
  }

  const InputFile& file_;
  std::string_view content_;
  const DocumentFormat& format_;
  const std::function<void(std::string_view)>& take_;
  const std::function<void(const Error&)>& reject_;
};

}  // namespace

Inputs find_inputs(const std::vector<fs::path>& paths, std::optional<InputKind> asked) {
  Inputs inputs;
  for (const fs::path& path : paths) {
    if (!fs::is_directory(path)) {
      inputs.files.push_back(describe(path, asked));
      continue;
    }
    for (const fs::path& file : files_below(path, inputs.left_out)) {
      inputs.files.push_back(describe(file, asked));
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
  return fmt::format("{} of the folder{} neither .txt nor .jsonl and left out: {}{}",
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

std::size_t next_document(std::string_view content, InputKind kind, const DocumentFormat& format,
                          std::size_t at) {
  if (at == 0 || at >= content.size()) return std::min(at, content.size());
  if (kind == InputKind::jsonl) {
    return line_at(content, at - 1, content.size()).next;  // at - 1: `at` may begin a line itself
  }
  switch (format.split) {
    case TextSplit::whole_file: break;
    case TextSplit::blank_lines: {
      std::size_t begin = line_at(content, at - 1, content.size()).next;
      while (begin < content.size()) {
        const Line line = line_at(content, begin, content.size());
        if (trim(content.substr(line.begin, line.end - line.begin)).empty()) return line.next;
        begin = line.next;
      }
      break;
    }
    case TextSplit::delimiter: {
      HEDDLE_CHECK(!format.delimiter.empty(), "an empty delimiter");
      const std::size_t first = at - std::min(at, format.delimiter.size());
      const std::size_t found = content.find(format.delimiter, first);
      if (found != std::string_view::npos) return found + format.delimiter.size();
      break;
    }
  }
  return content.size();
}

void read_documents(const InputFile& file, std::string_view content, std::size_t begin,
                    std::size_t end, const DocumentFormat& format,
                    const std::function<void(std::string_view)>& take,
                    const std::function<void(const Error&)>& reject) {
  Reader reader(file, content, format, take, reject);
  if (file.kind == InputKind::jsonl) return reader.read_lines(begin, end);
  switch (format.split) {
    case TextSplit::whole_file: return reader.take_text(begin, end);
    case TextSplit::blank_lines: return reader.read_paragraphs(begin, end);
    case TextSplit::delimiter: return reader.read_delimited(begin, end);
  }
}

}  // namespace heddle
