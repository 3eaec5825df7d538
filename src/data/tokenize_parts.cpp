#include "data/tokenize_parts.h"

#include <xxhash.h>

#include <array>
#include <chrono>
#include <memory>

#include "base/json.h"

namespace heddle {
namespace fs = std::filesystem;
namespace {

/// A change of what tokenize writes for the same inputs and options must change this.
constexpr int kRecipe = 4;

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

}  // namespace

std::string call_key(const std::vector<InputFile>& inputs, const TokenizeOptions& options) {
  Json json = {options_text(options)};
  for (const InputFile& file : inputs) {
    json.push_back({file.path.string(), file.size_bytes, file.modified_ns});
    if (file.is_standard_input()) {
      json.push_back(std::chrono::system_clock::now().time_since_epoch().count());
    }
  }
  return hash_text(dump(json));
}

std::string block_key(const InputBlock& block, const TokenizeOptions& options) {
  const std::unique_ptr<XXH64_state_t, XXH_errorcode (*)(XXH64_state_t*)> hash(XXH64_createState(),
                                                                               XXH64_freeState);
  XXH64_reset(hash.get(), 0);
  const auto add = [&](const auto& values) {
    const std::uint64_t count = values.size();
    XXH64_update(hash.get(), &count, sizeof count);
    if (count > 0) XXH64_update(hash.get(), values.data(), count * sizeof(values[0]));
  };
  add(options_text(options));
  for (const BlockRecord& one : block.records) {
    const std::array<int, 3> form = {static_cast<int>(one.record.form),
                                     static_cast<int>(one.record.continues),
                                     static_cast<int>(one.record.goes_on)};
    add(form);
    add(one.record.content);
    add(one.record.tokens);
    add(one.record.fault);
  }
  return fmt::format("{:016x}", XXH64_digest(hash.get()));
}

void write_record(FileSystem& files, const fs::path& path, const TokenizeRecord& record) {
  Json json = {{"key", record.key},       {"documents", record.documents},
               {"tokens", record.tokens}, {"skipped", record.skipped},
               {"empty", record.empty},   {"checksum", record.checksum}};
  if (!record.tokenizer.empty()) json["tokenizer"] = record.tokenizer;
  if (record.continues) json["continues"] = true;
  write_file_atomically(files, path, dump(json) + "\n");
}

void write_group_end(FileSystem& files, const fs::path& path, std::size_t blocks) {
  write_file_atomically(files, path, dump({{"blocks", blocks}}) + "\n");
}

std::optional<std::size_t> read_group_end(const fs::path& path) {
  if (!fs::exists(path)) return std::nullopt;
  return read_json_file(path).at("blocks").get<std::size_t>();
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
                                .checksum = json.at("checksum").get<std::uint64_t>(),
                                .continues = json.value("continues", false)};
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
