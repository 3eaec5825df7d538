#include "tokenizer/files/tokenizer_files.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/file_system.h"
#include "tokenizer/files/kinds.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

/// In the order in which a folder is searched.
constexpr std::array kTokenizerFiles = {"tokenizer.json", "tokenizer.model", "vocab.json",
                                        "vocab.txt"};

/// Adds the tokens that a file names, but for those that are named already.
void add_named(const Json& file, TokenRoles& tokens) {
  for (const auto& [key, value] : file.items()) {
    if (!key.ends_with("_token")) continue;
    if (std::string token = configured_token(file, key); !token.empty()) {
      tokens.emplace(key, std::move(token));
    }
  }
}

TokenRoles roles_beside(const fs::path& tokenizer) {
  TokenRoles roles =
      tokens_named_beside(tokenizer, json_beside(tokenizer, "tokenizer_config.json"));
  std::erase_if(roles, [](const auto& named) {
    return std::ranges::find(kTokenRoles, named.first) == kTokenRoles.end();
  });
  return roles;
}

fs::path file_in(const fs::path& folder) {
  for (const char* name : kTokenizerFiles) {
    if (fs::exists(folder / name)) return folder / name;
  }
  return {};
}

}  // namespace

TokenRoles tokens_named_beside(const fs::path& path, const Json& config) {
  const Json map = json_beside(path, "special_tokens_map.json");
  TokenRoles tokens;
  if (!config.contains("added_tokens_decoder")) add_named(map, tokens);
  add_named(config, tokens);
  if (const auto more = config.find("extra_special_tokens");
      more != config.end() && more->is_object()) {
    add_named(*more, tokens);
  }
  return tokens;
}

bool has_tokenizer(const fs::path& folder) { return !file_in(folder).empty(); }

fs::path tokenizer_file(const fs::path& path) {
  if (!fs::is_directory(path)) return path;
  fs::path file = file_in(path);
  if (!file.empty()) return file;
  throw Error(
      ErrorCode::data, fmt::format("{} has no tokenizer", path.string()),
      "a tokenizer.json, a tokenizer.model, a vocab.json with its merges.txt, or a vocab.txt");
}

TokenizerText read_tokenizer(const fs::path& path) {
  const fs::path file = tokenizer_file(path);
  TokenRoles roles = roles_beside(file);
  if (file.filename() == "vocab.json") {
    return {file, from_vocab_and_merges(file), std::move(roles)};
  }
  if (file.filename() == "vocab.txt") {
    const Json config = json_beside(file, "tokenizer_config.json");
    for (const auto& [role, usual] : kBertTokens) {
      if (!config.contains(role)) roles.emplace(role, usual);
    }
    return {file, from_word_pieces(file), std::move(roles)};
  }
  std::string content = read_text_file(file);
  // JSON starts with a brace; a SentencePiece model with the tag of its first piece.
  const bool is_json = !content.starts_with('\x0A') || file.extension() == ".json";
  return {file, is_json ? std::move(content) : from_sentencepiece(content, file), std::move(roles)};
}

Json json_beside(const fs::path& path, const char* name) {
  const fs::path file = path.parent_path() / name;
  if (!fs::exists(file)) return Json::object();
  Json json = read_json_file(file);
  if (!json.is_object()) fail(ErrorCode::data, "{}: not an object", file.string());
  return json;
}

std::string configured_token(const Json& config, std::string_view key) {
  const auto at = config.find(key);
  if (at == config.end()) return {};
  if (at->is_string()) return at->get<std::string>();
  if (at->is_object() && at->contains("content") && (*at)["content"].is_string()) {
    return (*at)["content"].get<std::string>();
  }
  return {};
}

std::string configured_text(const Json& config, const char* key, const char* otherwise) {
  const bool has_text = config.is_object() && config.contains(key) && config[key].is_string();
  return has_text ? config[key].get<std::string>() : otherwise;
}

std::string with_model(const Json& json, const std::string& model) {
  std::string text = json.dump();
  text.pop_back();
  return text + ",\"model\":" + model + "}";
}

Json added_token_entry(std::int64_t id, const std::string& content, bool special) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

Json surrounding_template(const std::vector<std::pair<std::string, std::int64_t>>& before,
                          const std::vector<std::pair<std::string, std::int64_t>>& after) {
  if (before.empty() && after.empty()) return nullptr;
  Json single = Json::array(), pair = Json::array(), tokens = Json::object();
  const auto put = [&](const auto& list) {
    for (const auto& [token, id] : list) {
      const Json entry = {{"SpecialToken", {{"id", token}, {"type_id", 0}}}};
      single.push_back(entry);
      pair.push_back(entry);
      tokens[token] = {{"id", token}, {"ids", {id}}, {"tokens", {token}}};
    }
  };
  put(before);
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  pair.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  put(after);
  pair.push_back({{"Sequence", {{"id", "B"}, {"type_id", 1}}}});
  return {{"type", "TemplateProcessing"},
          {"single", single},
          {"pair", pair},
          {"special_tokens", tokens}};
}

}  // namespace heddle
