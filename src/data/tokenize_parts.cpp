#include "data/tokenize_parts.h"

#include <algorithm>

#include "base/json.h"

namespace heddle {
namespace fs = std::filesystem;
namespace {

// Small enough that a few MB of text occupy every core, large enough that a terabyte does not make
// a million files.
constexpr std::size_t kSmallestPart = std::size_t{256} << 10;
constexpr std::size_t kLargestPart = std::size_t{16} << 20;
constexpr std::size_t kPartsWanted = 64;

/// A change of what tokenize writes for the same inputs and options must change this.
constexpr int kRecipe = 2;

std::string hash_text(const std::string& text) {
  return fmt::format("{:016x}", content_hash(std::as_bytes(std::span(text))));
}

/// Paths need not be valid UTF-8.
std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string options_text(const TokenizeOptions& options) {
  // As JSON, so that no delimiter inside a field can make two settings look alike.
  Json json = {kRecipe,
               options.origin.vocab_size,
               options.origin.tokenizer_fingerprint,
               options.end_token.value_or(-1),
               options.parse_special,
               options.format.field,
               static_cast<int>(options.format.split),
               options.format.delimiter,
               static_cast<int>(options.on_fault),
               options.kind ? static_cast<int>(*options.kind) : -1};
  return dump(json);
}

std::string key_of(const TokenizePart& part, const std::string& options) {
  Json json = {options};
  for (const InputSegment& segment : part.segments) {
    json.push_back({segment.file.path.string(), segment.file.size_bytes, segment.file.modified_ns,
                    segment.begin, segment.end});
  }
  return hash_text(dump(json));
}

class Planner {
 public:
  Planner(std::size_t part_bytes, std::string options)
      : part_bytes_(part_bytes), options_(std::move(options)) {}

  void add(const InputFile& file, const DocumentFormat& format) {
    const MappedFile map(file.path);
    const std::string_view content(reinterpret_cast<const char*>(map.bytes().data()),
                                   map.bytes().size());
    for (std::size_t begin = text_begin(content); begin < content.size();) {
      const std::size_t room = part_bytes_ - std::min(part_bytes_ - 1, current_.bytes);
      const std::size_t end =
          next_document(content, file.kind, format, std::min(begin + room, content.size()));
      current_.segments.push_back({file, begin, end});
      current_.bytes += end - begin;
      if (current_.bytes >= part_bytes_) finish_part();
      begin = end;
    }
  }

  std::vector<TokenizePart> finish() {
    if (!current_.segments.empty()) finish_part();
    return std::move(parts_);
  }

 private:
  void finish_part() {
    current_.key = key_of(current_, options_);
    parts_.push_back(std::move(current_));
    current_ = {};
  }

  std::size_t part_bytes_;
  std::string options_;
  TokenizePart current_;
  std::vector<TokenizePart> parts_;
};

}  // namespace

std::vector<TokenizePart> plan_parts(const std::vector<InputFile>& inputs,
                                     const TokenizeOptions& options) {
  std::size_t total = 0;
  for (const InputFile& file : inputs) total += file.size_bytes;
  Planner planner(std::clamp(total / kPartsWanted, kSmallestPart, kLargestPart),
                  options_text(options));
  for (const InputFile& file : inputs) planner.add(file, options.format);
  return planner.finish();
}

void write_record(FileSystem& files, const fs::path& path, const TokenizeRecord& record) {
  Json json = {{"key", record.key},       {"documents", record.documents},
               {"tokens", record.tokens}, {"skipped", record.skipped},
               {"empty", record.empty},   {"checksum", record.checksum}};
  if (!record.tokenizer.empty()) json["tokenizer"] = record.tokenizer;
  write_file_atomically(files, path, dump(json) + "\n");
}

bool is_record(const fs::path& path) {
  try {
    const Json json = read_json_file(path);
    return json.is_object() && json.contains("key") && json.contains("checksum");
  } catch (const Error&) {
    return false;
  }
}

std::optional<TokenizeRecord> find_record(const fs::path& path, const fs::path& token_file,
                                          const std::string& key) {
  if (!fs::exists(path) || !fs::exists(token_file)) return std::nullopt;
  try {
    const Json json = read_json_file(path);
    const TokenizeRecord record{.key = json.at("key").get<std::string>(),
                                .documents = json.at("documents").get<std::int64_t>(),
                                .tokens = json.at("tokens").get<std::int64_t>(),
                                .skipped = json.at("skipped").get<std::int64_t>(),
                                .empty = json.at("empty").get<std::int64_t>(),
                                .checksum = json.at("checksum").get<std::uint64_t>()};
    if (record.key != key) return std::nullopt;
    const TokenFile file = TokenFile::open(token_file, TokenFile::Check::content);
    if (file.header().checksum != record.checksum) return std::nullopt;
    return record;
  } catch (const Error&) {  // whatever is wrong with it, the work is done again
  } catch (const nlohmann::json::exception&) {
  }
  return std::nullopt;
}

std::optional<fs::path> recorded_tokenizer(const fs::path& token_file) {
  const fs::path record = token_file.string() + ".json";
  if (!fs::exists(record)) return std::nullopt;
  const Json json = read_json_file(record);
  if (!json.is_object() || !json.contains("tokenizer") || !json["tokenizer"].is_string()) {
    return std::nullopt;
  }
  return fs::path(json["tokenizer"].get<std::string>());
}

}  // namespace heddle
