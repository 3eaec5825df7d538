#include "data/formats/input_kind.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "base/error.h"
#include "base/strings.h"
#include "data/formats/byte_stream.h"

namespace heddle {
namespace fs = std::filesystem;
namespace {

using std::string_view_literals::operator""sv;

/// What is parsed to tell JSON from prose that begins like it.
constexpr std::size_t kJsonHead = 64 * 1024;
constexpr const char* kUnpack = "unpack it first; .gz and .zst are read as they are";
constexpr const char* kExport =
    "write its texts as JSON lines, one {\"text\": ...} a line, and give that";

struct Signature {
  std::string_view bytes;
  const char* kind;
  const char* hint;
  bool is_word = false;  ///< text may begin so too: then there must be bytes that no text has
};

constexpr std::array kRefused = {
    Signature{"HDLTOKEN", "a token file",
              "it holds tokens already: use it as data.train, or give the text it was made from"},
    Signature{"\xFD"
              "7zXZ\0"sv,
              "compressed by xz", kUnpack},
    Signature{"BZh", "compressed by bzip2", kUnpack, true},
    Signature{"\x04\x22\x4D\x18", "compressed by lz4", kUnpack},
    Signature{"\xFF\x06\0\0sNaPpY"sv, "compressed by snappy", kUnpack},
    Signature{"PK\x03\x04", "a zip archive (as PyTorch and NumPy write, too)", kUnpack},
    Signature{"7z\xBC\xAF\x27\x1C", "a 7-Zip archive", kUnpack},
    Signature{"Rar!\x1A\x07", "a RAR archive", kUnpack},
    Signature{"\x93NUMPY", "a NumPy array", kExport},
    Signature{"\x89HDF", "an HDF5 file", kExport},
    Signature{"SQLite format 3", "an SQLite database", kExport, true},
    Signature{"FEA1", "a Feather file of version 1",
              "write it again as Feather version 2, or as Parquet", true},
    Signature{"ORC", "an ORC file", kExport, true},
    Signature{"Obj\x01", "an Avro file", kExport},
    Signature{"%PDF-", "a PDF file", kExport},
    Signature{"{\\rtf", "an RTF document", kExport},
    Signature{"\xD0\xCF\x11\xE0", "a document of an office program", kExport},
    Signature{"\x89PNG", "a PNG image", kExport},
    Signature{"\xFF\xD8\xFF", "a JPEG image", kExport},
    Signature{"GIF8", "a GIF image", kExport, true},
    Signature{"RIFF", "an image, sound or film (RIFF)", kExport, true},
    Signature{"OggS", "sound or film (Ogg)", kExport, true},
    Signature{"ID3", "sound (MP3)", kExport, true},
    Signature{"\x7F"
              "ELF",
              "a program (ELF)", "give the text, not a program"},
    Signature{"MZ", "a program (of Windows)", "give the text, not a program", true},
    Signature{"\xCF\xFA\xED\xFE", "a program (Mach-O)", "give the text, not a program"},
    Signature{"\xCA\xFE\xBA\xBE", "a program (Java or Mach-O)", "give the text, not a program"},
    Signature{"GGUF", "a model (GGUF)", "give the text, not the model", true},
};
constexpr const char* kUtf8 = "convert it: iconv -f UTF-16 -t UTF-8 FILE > NEW";

[[noreturn]] void refuse(const fs::path& path, std::string_view kind, const std::string& hint) {
  throw Error(ErrorCode::data,
              fmt::format("{} is {}, which is not read as data", path.string(), kind), hint);
}

Packing packing_of(std::string_view head) {
  if (head.starts_with("\x1F\x8B")) return Packing::gzip;
  if (head.starts_with("\x28\xB5\x2F\xFD")) return Packing::zstd;
  // A frame to be passed over, with which pzstd begins: its first byte has any lower half.
  const bool has_number =
      !head.empty() && (static_cast<unsigned char>(head.front()) & 0xF0) == 0x50;
  if (has_number && head.substr(1).starts_with("\x2A\x4D\x18")) return Packing::zstd;
  return Packing::none;
}

bool has_control_bytes(std::string_view head) {
  return std::any_of(head.begin(), head.end(), [](char c) { return c >= 0 && c < '\t'; });
}

bool is_safetensors(std::string_view content) {
  return content.size() > 8 && content[8] == '{' && content.substr(4, 4) == "\0\0\0\0"sv;
}

bool is_pickle(std::string_view content) {
  if (content.size() < 2) return false;
  if (content[0] == '\x80') return content[1] >= '\x02' && content[1] <= '\x05';
  return content.starts_with("(dp0\n") || content.starts_with("(lp0\n");
}

/// Refuses what first bytes show to be something else than text.
void refuse_by_signature(const fs::path& path, std::string_view content) {
  const bool is_binary = has_control_bytes(content);
  for (const Signature& signature : kRefused) {
    if (!content.starts_with(signature.bytes) || (signature.is_word && !is_binary)) continue;
    refuse(path, signature.kind, signature.hint);
  }
  if (content.starts_with("\xFF\xFE") || content.starts_with("\xFE\xFF")) {
    refuse(path, "text in UTF-16", kUtf8);
  }
  if (is_pickle(content)) refuse(path, "a Python pickle", kExport);
  if (is_safetensors(content)) refuse(path, "a safetensors file", "give the text, not the model");
  if (content.size() > 262 && content.substr(257, 5) == "ustar") {
    refuse(path, "a tar archive", kUnpack);
  }
  if (content.size() > 8 && content.substr(4, 4) == "ftyp") refuse(path, "a film (MP4)", kExport);
}

void refuse_binary(const fs::path& path, std::string_view content) {
  const auto nul = content.find('\0');
  if (nul == std::string_view::npos) return;
  refuse(path, fmt::format("binary data (byte {} is 0)", nul),
         "give the text it was made from; tokens of nanoGPT are read when the name ends in .bin or "
         "with --as nanogpt, those of Megatron-LM with their .idx beside");
}

/// Whether `text` is the beginning of a JSON value or all of it; behind an object anything may
/// come.
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
  const bool is_alone = !text.starts_with('{');
  return nlohmann::json::sax_parse(text, &reader, nlohmann::json::input_format_t::json, is_alone) ||
         reader.error_at > text.size();
}

std::string_view without_mark(std::string_view content) {
  if (content.starts_with(kByteOrderMark)) content.remove_prefix(kByteOrderMark.size());
  return trim(content);
}

/// The first line where it is an object; else empty.
std::string_view first_object(std::string_view body) {
  const std::string_view line = body.substr(0, body.find('\n'));
  return body.starts_with('{') && nlohmann::json::accept(line) ? line : std::string_view();
}

/// What the content is as JSON; absent when it is none.
std::optional<InputKind> json_kind(std::string_view content) {
  const std::string_view body = without_mark(content);
  if (!first_object(body).empty()) return InputKind::jsonl;
  const bool may_be_json = body.starts_with('{') || body.starts_with('[');
  if (may_be_json && begins_as_json(body.substr(0, kJsonHead))) return InputKind::json;
  return std::nullopt;
}

/// Whether the first line is an object, and the second begins as one: no prose and no table does.
bool are_json_lines(std::string_view content) {
  const std::string_view body = without_mark(content), first = first_object(body);
  if (first.empty()) return false;
  const std::string_view second = trim(body.substr(first.size()));
  return second.starts_with('{') && begins_as_json(second.substr(0, kJsonHead));
}

/// A kind that bytes alone show; absent for text and for what nothing tells.
std::optional<InputKind> binary_kind(const fs::path& path, std::string_view content) {
  if (content.starts_with("PAR1")) return InputKind::parquet;
  if (content.starts_with("ARROW1") || content.starts_with("\xFF\xFF\xFF\xFF")) {
    return InputKind::arrow;
  }
  if (content.starts_with("MMIDIDX\0\0"sv)) return InputKind::megatron;
  if (content.find('\0') == std::string_view::npos || path.extension() != ".bin") {
    return std::nullopt;
  }
  const bool has_index = fs::exists(fs::path(path).replace_extension(".idx"));
  return has_index ? InputKind::megatron : InputKind::nanogpt;
}

/// The kind that a name promises.
std::optional<InputKind> named_kind(const fs::path& name) {
  const std::string extension = name.extension().string();
  const auto is = [&](std::initializer_list<const char*> names) {
    return std::any_of(names.begin(), names.end(), [&](const char* n) { return extension == n; });
  };
  if (is({".txt"})) return InputKind::text;
  if (is({".jsonl", ".ndjson"})) return InputKind::jsonl;
  if (is({".json"})) return InputKind::json;
  if (is({".csv"})) return InputKind::csv;
  if (is({".tsv"})) return InputKind::tsv;
  if (is({".parquet", ".pq"})) return InputKind::parquet;
  if (is({".arrow", ".arrows", ".feather", ".ipc"})) return InputKind::arrow;
  return std::nullopt;
}

bool is_binary(InputKind kind) {
  return kind == InputKind::parquet || kind == InputKind::arrow || kind == InputKind::nanogpt ||
         kind == InputKind::megatron;
}

/// The kind of a file whose bytes may be text.
InputKind text_kind(const fs::path& path, const fs::path& name, std::string_view content,
                    std::optional<InputKind> asked) {
  const std::optional<InputKind> promised = asked ? asked : named_kind(name);
  if (promised && is_binary(*promised) && promised != InputKind::nanogpt) {
    refuse(path,
           fmt::format("{} {} but does not begin as such a file does",
                       asked ? "taken for" : "named", name_of(*promised)),
           "it may be damaged or of another kind; say which with --as or data.format");
  }
  if (promised == InputKind::nanogpt) return InputKind::nanogpt;
  refuse_binary(path, content);
  if (asked) return *asked;
  if (promised == InputKind::text || promised == InputKind::csv || promised == InputKind::tsv) {
    return are_json_lines(content) ? InputKind::jsonl : *promised;
  }
  const std::optional<InputKind> json = json_kind(content);
  if (promised == InputKind::jsonl) {  // a list may be called so; one bad line does not matter
    const bool is_list = json && trim(content).starts_with('[');
    return is_list ? InputKind::json : InputKind::jsonl;
  }
  if (promised == InputKind::json && !json && !trim(content).empty()) {
    const std::string_view body = without_mark(content);  // whose reader names the place
    if (body.starts_with('[') || body.starts_with('{')) return InputKind::json;
    refuse(path, "named .json and does not begin as JSON does",
           "correct it, or take it as prose with --as text");
  }
  return json.value_or(promised.value_or(InputKind::text));
}

}  // namespace

const std::vector<std::string>& input_kind_names() {
  static const std::vector<std::string> names = {"text",    "jsonl", "json",    "csv",     "tsv",
                                                 "parquet", "arrow", "nanogpt", "megatron"};
  return names;
}

std::string_view name_of(InputKind kind) {
  return input_kind_names()[static_cast<std::size_t>(kind)];
}

std::optional<InputKind> input_kind_named(std::string_view name) {
  if (name.empty()) return std::nullopt;
  const auto& names = input_kind_names();
  const auto found = std::find(names.begin(), names.end(), name);
  HEDDLE_CHECK(found != names.end(), "no kind of input is named {}", name);
  return static_cast<InputKind>(found - names.begin());
}

Recognised recognise(const fs::path& path, std::string_view head, std::optional<InputKind> asked) {
  const Packing packing = packing_of(head);
  const std::string content = unpack_head(head, packing);
  const fs::path extension = path.extension();
  const bool is_named_packed = extension == ".gz" || extension == ".zst" || extension == ".zstd";
  const fs::path name = is_named_packed ? path.stem() : path;
  if (packing != Packing::none && packing_of(content) != Packing::none) {
    refuse(path, "compressed twice", kUnpack);
  }
  std::optional<InputKind> binary = binary_kind(path, content);
  if (!binary || *binary == InputKind::nanogpt) refuse_by_signature(path, content);
  if (asked && *asked == InputKind::nanogpt) binary.reset();  // it has no signature of its own
  const auto needs_places = binary ? binary : asked == InputKind::nanogpt ? asked : std::nullopt;
  if (needs_places && packing != Packing::none) {
    refuse(path, fmt::format("a compressed file of kind {}", name_of(*needs_places)),
           "unpack it first: such files are read at many places");
  }
  if (binary && asked && *asked != *binary) {
    refuse(path, fmt::format("of kind {}, not {},", name_of(*binary), name_of(*asked)),
           "leave --as and data.format out");
  }
  if (binary) return {*binary, packing};
  return {text_kind(path, name, content, asked), packing};
}

}  // namespace heddle
