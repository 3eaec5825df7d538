#include <sstream>

#include "base/error.h"
#include "base/file_system.h"
#include "tokenizer/files/kinds.h"
#include "tokenizer/pretokenizers/scan.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

/// Sorted: an object that keeps its order is slow with so many keys.
using VocabJson = nlohmann::json;

Json byte_level_step(bool adds_space, bool splits) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", adds_space},
          {"trim_offsets", true},
          {"use_regex", splits}};
}

Json sequence_of(const char* key, Json steps) { return {{"type", "Sequence"}, {key, steps}}; }

/// How a class of tokenizers cuts text; without a class it is GPT-2's way.
struct WordRules {
  Json normalizer = nullptr, pre_tokenizer;
  bool surrounds = false;  ///< with bos and eos
};

WordRules rules_of(const Json& config, const fs::path& vocab) {
  std::string kind = configured_text(config, "tokenizer_class", "GPT2Tokenizer");
  if (kind.ends_with("Fast")) kind.resize(kind.size() - 4);
  const bool adds_space = config.value("add_prefix_space", Json(false)) == true;
  if (kind == "GPT2Tokenizer" || kind == "CodeGenTokenizer") {
    return {.pre_tokenizer = byte_level_step(adds_space, true)};
  }
  if (kind == "RobertaTokenizer" || kind == "BartTokenizer") {
    return {.pre_tokenizer = byte_level_step(adds_space, true), .surrounds = true};
  }
  if (kind == "Qwen2Tokenizer") {
    Json split = {{"type", "Split"},
                  {"pattern", {{"Regex", std::string(kQwen2Pattern)}}},
                  {"behavior", "Isolated"},
                  {"invert", false}};
    return {
        .normalizer = {{"type", "NFC"}},
        .pre_tokenizer = sequence_of("pretokenizers", {split, byte_level_step(adds_space, false)})};
  }
  throw Error(ErrorCode::data,
              fmt::format("{}: how a {} cuts text is not known", vocab.string(), kind),
              "use its tokenizer.json");
}

VocabJson read_vocab(const fs::path& path) {
  const VocabJson vocab = VocabJson::parse(read_text_file(path), nullptr, false);
  if (!vocab.is_object() || vocab.empty()) {
    fail(ErrorCode::data, "{} is no object of tokens and ids", path.string());
  }
  for (const auto& [token, id] : vocab.items()) {
    if (!id.is_number_integer()) {
      fail(ErrorCode::data, "{}: \"{}\" has no id", path.string(), token);
    }
  }
  return vocab;
}

Json read_merge_lines(const fs::path& path) {
  Json merges = Json::array();
  std::istringstream lines(read_text_file(path));
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty() || (merges.empty() && line.starts_with("#version"))) continue;
    const auto space = line.find(' ');
    if (space == std::string::npos || line.find(' ', space + 1) != std::string::npos) {
      fail(ErrorCode::data, "{}: \"{}\" is not a pair of tokens", path.string(), line);
    }
    merges.push_back({line.substr(0, space), line.substr(space + 1)});
  }
  return merges;
}

/// added_tokens_decoder and the named tokens of tokenizer_config.json, and added_tokens.json.
Json added_tokens_of(const Json& config, const VocabJson& vocab, const fs::path& folder) {
  Json added = Json::array();
  const auto put = [&](std::int64_t id, const std::string& content, const Json* flags) {
    for (const Json& one : added) {
      if (one["content"] == content) return;
    }
    Json entry = added_token_entry(id, content, true);
    if (flags != nullptr) {
      for (const char* key : {"single_word", "lstrip", "rstrip", "normalized", "special"}) {
        if (flags->contains(key)) entry[key] = (*flags)[key];
      }
    }
    added.push_back(entry);
  };
  if (const auto at = config.find("added_tokens_decoder"); at != config.end() && at->is_object()) {
    for (const auto& [id, token] : at->items()) {
      put(std::strtoll(id.c_str(), nullptr, 10), configured_text(token, "content"), &token);
    }
  }
  if (const fs::path file = folder / "added_tokens.json"; fs::exists(file)) {
    const Json listed = read_json_file(file);
    for (const auto& [token, id] : listed.items()) {
      if (id.is_number_integer()) put(id.get<std::int64_t>(), token, nullptr);
    }
  }
  for (const char* key : {"bos_token", "eos_token", "unk_token", "pad_token", "mask_token",
                          "cls_token", "sep_token"}) {
    const std::string token = configured_token(config, key);
    if (const auto id = vocab.find(token); !token.empty() && id != vocab.end()) {
      put(id->get<std::int64_t>(), token, nullptr);
    }
  }
  // GPT-2's own folder names it nowhere.
  if (const auto id = vocab.find("<|endoftext|>"); id != vocab.end()) {
    put(id->get<std::int64_t>(), "<|endoftext|>", nullptr);
  }
  return added;
}

Json template_of(const Json& config, const VocabJson& vocab, bool surrounds) {
  if (!surrounds) return nullptr;
  const auto token = [&](const char* key, const char* usual) {
    std::vector<std::pair<std::string, std::int64_t>> found;
    std::string name = configured_token(config, key);
    if (name.empty()) name = usual;
    if (const auto id = vocab.find(name); id != vocab.end()) {
      found.emplace_back(name, id->get<std::int64_t>());
    }
    return found;
  };
  return surrounding_template(token("bos_token", "<s>"), token("eos_token", "</s>"));
}

}  // namespace

std::string from_vocab_and_merges(const fs::path& path) {
  const fs::path folder = path.parent_path(), merges = folder / "merges.txt";
  if (!fs::exists(merges)) {
    throw Error(ErrorCode::data, fmt::format("{} has no merges.txt beside it", path.string()),
                "both files make a tokenizer");
  }
  const VocabJson vocab = read_vocab(path);
  const Json config = json_beside(path, "tokenizer_config.json");
  WordRules rules = rules_of(config, path);
  const Json json = {{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", added_tokens_of(config, vocab, folder)},
                     {"normalizer", rules.normalizer},
                     {"pre_tokenizer", rules.pre_tokenizer},
                     {"post_processor", template_of(config, vocab, rules.surrounds)},
                     {"decoder", byte_level_step(false, true)}};
  return with_model(json, fmt::format(R"({{"type":"BPE","vocab":{},"merges":{}}})", vocab.dump(),
                                      read_merge_lines(merges).dump()));
}

}  // namespace heddle
