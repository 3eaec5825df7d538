#include "data/input_kind.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "base/file_system.h"
#include "base/strings.h"

namespace heddle {
namespace fs = std::filesystem;
namespace {

using std::string_view_literals::operator""sv;

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
/// What is looked at for bytes that no text has.
constexpr std::size_t kHead = 64 * 1024;
constexpr const char* kUnpack = "unpack it first";
constexpr const char* kExport =
    "write its texts as JSON lines, one {\"text\": ...} a line, and give that";

struct Signature {
  std::string_view bytes;
  const char* kind;
  const char* hint;
};

constexpr std::array kSignatures = {
    Signature{"HDLTOKEN", "a token file",
              "it holds tokens already: use it as data.train, or give the text it was made from"},
    Signature{"\x1F\x8B", "compressed by gzip", kUnpack},
    Signature{"\x28\xB5\x2F\xFD", "compressed by zstd", kUnpack},
    Signature{"\xFD"
              "7zXZ\0"sv,
              "compressed by xz", kUnpack},
    Signature{"BZh", "compressed by bzip2", kUnpack},
    Signature{"PK\x03\x04", "a zip archive", kUnpack},
    Signature{"PAR1", "a Parquet file", kExport},
    Signature{"ARROW1", "an Arrow file", kExport},
    Signature{"\xFF\xFF\xFF\xFF", "an Arrow stream", kExport},
    Signature{"\x93NUMPY", "a NumPy array", kExport},
    Signature{"\x89HDF", "an HDF5 file", kExport},
    Signature{"SQLite format 3", "an SQLite database", kExport},
    Signature{"MMIDIDX", "an index of Megatron", "give the text it was made from"},
    Signature{"%PDF-", "a PDF file", kExport},
};
constexpr const char* kUtf8 = "convert it: iconv -f UTF-16 -t UTF-8 FILE > NEW";

[[noreturn]] void refuse(const fs::path& path, std::string_view kind, const std::string& hint) {
  throw Error(ErrorCode::data, fmt::format("{} is {}, not text or JSON lines", path.string(), kind),
              hint);
}

bool is_safetensors(std::string_view content) {
  std::uint64_t header = 0;
  if (content.size() < sizeof header + 2) return false;
  std::memcpy(&header, content.data(), sizeof header);
  return header < content.size() && content[sizeof header] == '{' && content[7] == '\0';
}

/// Refuses what bytes alone show.
void refuse_binary(const fs::path& path, std::string_view content) {
  for (const Signature& signature : kSignatures) {
    if (content.starts_with(signature.bytes)) refuse(path, signature.kind, signature.hint);
  }
  if (content.starts_with("\xFF\xFE") || content.starts_with("\xFE\xFF")) {
    refuse(path, "text in UTF-16", kUtf8);
  }
  if (is_safetensors(content)) refuse(path, "a safetensors file", "give the text, not the model");
  const auto head = content.substr(0, kHead);
  if (const auto nul = head.find('\0'); nul != std::string_view::npos) {
    refuse(path, fmt::format("binary data (byte {} is 0)", nul),
           "give the text it was made from; token files of other programs (Megatron's and "
           "nanoGPT's .bin) are not read");
  }
}

/// Whether `text` is the beginning of one JSON value, or all of it.
bool begins_as_json(std::string_view text) {
  struct Reader : nlohmann::json_sax<nlohmann::json> {
    std::size_t error_at = std::string_view::npos;
    bool null() override { return true; }
    bool boolean(bool) override { return true; }
    bool number_integer(number_integer_t) override { return true; }
    bool number_unsigned(number_unsigned_t) override { return true; }
    bool number_float(number_float_t, const string_t&) override { return true; }
    bool string(string_t&) override { return true; }
    bool binary(binary_t&) override { return true; }
    bool start_object(std::size_t) override { return true; }
    bool key(string_t&) override { return true; }
    bool end_object() override { return true; }
    bool start_array(std::size_t) override { return true; }
    bool end_array() override { return true; }
    bool parse_error(std::size_t position, const std::string&,
                     const nlohmann::detail::exception&) override {
      error_at = position;
      return false;
    }
  } reader;
  return nlohmann::json::sax_parse(text, &reader) || reader.error_at > text.size();
}

/// By what JSON there is: text when it is none.
InputKind recognise_json(const fs::path& path, std::string_view content) {
  const auto body = trim(content);
  const bool is_named_json = path.extension() == ".json";
  if (body.starts_with('{') && nlohmann::json::accept(body.substr(0, body.find('\n')))) {
    return InputKind::jsonl;
  }
  const bool may_be_json = body.starts_with('{') || body.starts_with('[');
  if (is_named_json || (may_be_json && begins_as_json(body.substr(0, kHead)))) {
    refuse(path,
           body.starts_with('[')   ? "a JSON list"
           : body.starts_with('{') ? "one JSON object over several lines"
                                   : "called .json",
           "write it as JSON lines, one object a line (jq -c '.[]' makes them of a list), or take "
           "it as prose with `heddle tokenize --as text`");
  }
  return InputKind::text;
}

}  // namespace

std::size_t text_begin(std::string_view content) {
  return content.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
}

InputKind recognise_input(const fs::path& path, std::optional<InputKind> asked) {
  const MappedFile map(path);
  std::string_view content(reinterpret_cast<const char*>(map.bytes().data()), map.bytes().size());
  refuse_binary(path, content);
  if (asked) return *asked;
  const fs::path extension = path.extension();
  if (extension == ".txt") return InputKind::text;
  if (extension == ".jsonl" || extension == ".ndjson") return InputKind::jsonl;
  if (extension == ".csv" || extension == ".tsv") {
    refuse(path, "a table by its name",
           "write the column with the text as JSON lines, one {\"text\": ...} a line, or take the "
           "file as prose with `heddle tokenize --as text`");
  }
  return recognise_json(path, content.substr(text_begin(content)));
}

}  // namespace heddle
