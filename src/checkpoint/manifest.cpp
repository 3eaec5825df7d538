#include "checkpoint/manifest.h"

#include <array>
#include <charconv>
#include <cmath>

#include "base/json.h"

namespace heddle {
namespace fs = std::filesystem;
namespace {

constexpr const char* kFormat = "heddle-checkpoint";

const Json& field(const Json& object, const char* key, const std::string& where) {
  const auto at = object.find(key);
  if (at == object.end()) fail(ErrorCode::data, "{}: \"{}\" is missing", where, key);
  return *at;
}

std::int64_t whole_number(const Json& object, const char* key, const std::string& where) {
  const Json& value = field(object, key, where);
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > INT64_MAX) {
    fail(ErrorCode::data, "{}: \"{}\" is not a whole number", where, key);
  }
  return value.get<std::int64_t>();
}

std::string text(const Json& object, const char* key, const std::string& where) {
  const Json& value = field(object, key, where);
  if (!value.is_string()) fail(ErrorCode::data, "{}: \"{}\" is not a string", where, key);
  return value.get<std::string>();
}

std::uint64_t parse_checksum(std::string_view digits, const std::string& of,
                             const std::string& where) {
  std::uint64_t checksum = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), checksum, 16);
  if (error != std::errc() || end != digits.data() + digits.size() || digits.size() != 16) {
    fail(ErrorCode::data, "{}: the checksum of {} is not 16 hexadecimal digits", where, of);
  }
  return checksum;
}

/// "AT RUN COUNT STRIDE XXH64".
FilePart parse_part(const Json& json, const FileRecord& record, const std::string& where) {
  if (!json.is_string()) fail(ErrorCode::data, "{}: \"parts\" holds no strings", where);
  const auto text = json.get<std::string>();
  std::array<std::uint64_t, 4> numbers{};
  const char* at = text.data();
  for (std::uint64_t& number : numbers) {
    const auto [end, error] = std::from_chars(at, text.data() + text.size(), number);
    if (error != std::errc() || end == text.data() + text.size() || *end != ' ') {
      fail(ErrorCode::data, "{}: \"{}\" is no part of a file", where, text);
    }
    at = end + 1;
  }
  const auto [begin, run, count, stride] = numbers;
  const std::uint64_t size = record.size_bytes;
  const bool fits = run >= 1 && run <= size && begin <= size - run && count >= 1 &&
                    (count == 1 || (stride >= run && count - 1 <= (size - run - begin) / stride));
  if (!fits) fail(ErrorCode::data, "{}: a part of {} lies outside it", where, record.path);
  return {.at = begin,
          .run = run,
          .count = count,
          .stride = stride,
          .checksum = parse_checksum({at, text.data() + text.size()}, record.path, where)};
}

void require_covered(const FileRecord& record, const std::string& where) {
  if (record.parts.empty()) return;
  std::uint64_t covered = 0;
  for (const FilePart& part : record.parts) covered += part.run * part.count;
  if (covered == record.size_bytes) return;
  fail(ErrorCode::data, "{}: the parts of {} have {} bytes, but it has {}", where, record.path,
       covered, record.size_bytes);
}

FileRecord parse_record(const Json& json, const std::string& where) {
  if (!json.is_object()) fail(ErrorCode::data, "{}: \"files\" holds no objects", where);
  FileRecord record;
  record.path = text(json, "path", where);
  const fs::path path(record.path);
  bool inside = !path.empty() && !path.is_absolute();
  for (const auto& part : path) inside = inside && part != "..";
  if (!inside) fail(ErrorCode::data, "{}: \"{}\" lies outside the folder", where, record.path);
  record.size_bytes = static_cast<std::uint64_t>(whole_number(json, "bytes", where));
  const auto parts = json.find("parts");
  if (parts == json.end()) {
    record.checksum = parse_checksum(text(json, "xxh64", where), record.path, where);
    return record;
  }
  if (!parts->is_array()) fail(ErrorCode::data, "{}: \"parts\" is not an array", where);
  for (const Json& part : *parts) record.parts.push_back(parse_part(part, record, where));
  return record;
}

Json record_json(const FileRecord& record) {
  Json json = {{"path", record.path}, {"bytes", record.size_bytes}};
  if (record.parts.empty()) {
    json["xxh64"] = checksum_text(record.checksum);
    return json;
  }
  Json& parts = json["parts"] = Json::array();
  for (const FilePart& part : record.parts) {
    parts.push_back(fmt::format("{} {} {} {} {}", part.at, part.run, part.count, part.stride,
                                checksum_text(part.checksum)));
  }
  return json;
}

bool is_unchanged(const FileRecord& record, std::span<const std::byte> bytes) {
  if (record.parts.empty()) return checksum_of(bytes) == record.checksum;
  for (const FilePart& part : record.parts) {
    Checksum checksum;
    for (std::uint64_t i = 0; i < part.count; ++i) {
      checksum.update(bytes.subspan(part.at + i * part.stride, part.run));
    }
    if (checksum.value() != part.checksum) return false;
  }
  return true;
}

void check_file(const fs::path& folder, const FileRecord& record, Verify verify) {
  std::error_code error;
  const auto size = fs::file_size(folder / record.path, error);
  if (error) fail(ErrorCode::data, "{} is missing", record.path);
  if (size != record.size_bytes) {
    fail(ErrorCode::data, "{} has {} bytes instead of {}", record.path, size, record.size_bytes);
  }
  if (verify == Verify::checksums &&
      !is_unchanged(record, MappedFile(folder / record.path).bytes())) {
    fail(ErrorCode::data, "the content of {} has changed", record.path);
  }
}

}  // namespace

std::string manifest_text(const Manifest& manifest) {
  Json json = Json::object();
  json["format"] = kFormat;
  json["version"] = Manifest::kVersion;
  json["step"] = manifest.step;
  json["tokens"] = manifest.tokens;
  if (manifest.eval_loss && std::isfinite(*manifest.eval_loss)) {
    json["eval_loss"] = *manifest.eval_loss;
  }
  json["mesh"] = manifest.mesh;
  json["trainer"] = manifest.trainer ? *manifest.trainer : Json::object();
  Json& files = json["files"] = Json::array();
  for (const FileRecord& record : manifest.files) files.push_back(record_json(record));
  return json.dump(2) + "\n";
}

Manifest parse_manifest(std::string_view content, const std::string& where) {
  const Json json = parse_json(content, where);
  if (!json.is_object() || json.value("format", Json()) != kFormat) {
    fail(ErrorCode::data, "{}: not the manifest of a checkpoint", where);
  }
  const std::int64_t version = whole_number(json, "version", where);
  if (version < 1 || version > Manifest::kVersion) {
    throw Error(ErrorCode::data,
                fmt::format("{}: format version {} is not known (this program reads up to {})",
                            where, version, Manifest::kVersion),
                "use the version of heddle that wrote it, or a newer one");
  }
  Manifest manifest;
  manifest.step = whole_number(json, "step", where);
  manifest.tokens = whole_number(json, "tokens", where);
  if (const auto loss = json.find("eval_loss"); loss != json.end() && loss->is_number()) {
    manifest.eval_loss = loss->get<double>();
  }
  manifest.mesh = text(json, "mesh", where);
  manifest.trainer = std::make_shared<const Json>(field(json, "trainer", where));
  if (!manifest.trainer->is_object())
    fail(ErrorCode::data, "{}: \"trainer\" is not an object", where);
  const Json& files = field(json, "files", where);
  if (!files.is_array()) fail(ErrorCode::data, "{}: \"files\" is not an array", where);
  for (const Json& file : files) manifest.files.push_back(parse_record(file, where));
  for (const FileRecord& record : manifest.files) require_covered(record, where);
  return manifest;
}

std::string records_text(const std::vector<FileRecord>& records) {
  Json json = Json::array();
  for (const FileRecord& record : records) json.push_back(record_json(record));
  return json.dump() + "\n";
}

std::vector<FileRecord> parse_records(std::string_view content, const std::string& where) {
  std::vector<FileRecord> records;
  for (const Json& json : parse_json(content, where)) records.push_back(parse_record(json, where));
  return records;
}

std::string commit_text(std::string_view manifest) {
  return fmt::format("xxh64 {} {}\n",
                     checksum_text(checksum_of(std::as_bytes(std::span(manifest)))), kManifestFile);
}

Result<Manifest> check_checkpoint(const fs::path& folder, Verify verify) {
  try {
    std::error_code error;
    if (!fs::is_regular_file(folder / kCommitFile, error)) {
      fail(ErrorCode::data, "{} is missing", kCommitFile);
    }
    if (!fs::is_regular_file(folder / kManifestFile, error)) {
      fail(ErrorCode::data, "{} is missing", kManifestFile);
    }
    const std::string content = read_text_file(folder / kManifestFile);
    if (read_text_file(folder / kCommitFile) != commit_text(content)) {
      fail(ErrorCode::data, "{} does not belong to {}", kCommitFile, kManifestFile);
    }
    Manifest manifest = parse_manifest(content, kManifestFile);
    for (const FileRecord& record : manifest.files) check_file(folder, record, verify);
    return manifest;
  } catch (const Error& e) {
    return e;
  }
}

}  // namespace heddle
