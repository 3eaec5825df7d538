#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "base/file_system.h"
#include "base/strings.h"
#include "tokenizer/files/kinds.h"
#include "tokenizer/unicode/characters.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

/// Classes of transformers that cut text as BertTokenizer does.
constexpr std::array kBertClasses = {
    "BertTokenizer",     "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer",
    "ConvBertTokenizer", "LayoutLMTokenizer",   "LxmertTokenizer",  "SqueezeBertTokenizer"};

/// In the order in which transformers adds them.
constexpr std::array<const char*, 7> kRoles = {"bos_token", "eos_token", "unk_token", "sep_token",
                                               "pad_token", "cls_token", "mask_token"};

void require_bert(const Json& config, const fs::path& path) {
  const std::string said = configured_text(config, "tokenizer_class", "BertTokenizer");
  std::string kind = said;
  if (kind.ends_with("Fast")) kind.resize(kind.size() - 4);
  if (std::ranges::find(kBertClasses, kind) != kBertClasses.end()) return;
  throw Error(ErrorCode::data,
              fmt::format("{}: how a {} cuts text is not known", path.string(), said),
              "use its tokenizer.json");
}

/// A flag, or null where that leaves something open.
Json flag_of(const Json& config, const char* key, Json usual, const fs::path& path) {
  const auto at = config.find(key);
  if (at == config.end() || (at->is_null() && usual.is_null())) return usual;
  if (at->is_boolean()) return *at;
  fail(ErrorCode::data, "{}: {} beside it is neither true nor false", path.string(), key);
}

/// Without white space that it ends with.
std::string_view trimmed_end(std::string_view line) {
  while (!line.empty()) {
    const std::size_t last = last_character(line);
    if (leading_white_space(line.substr(last)) == 0) break;
    line = line.substr(0, last);
  }
  return line;
}

/// A token on each line, whose number is its id.
class WordPieceVocab {
 public:
  explicit WordPieceVocab(const fs::path& path) : path_(path) {
    const std::string text = read_text_file(path);
    if (const auto valid = valid_utf8_prefix(text); valid != text.size()) {
      fail(ErrorCode::data, "{}: byte {} is not UTF-8", path.string(), valid);
    }
    std::vector<std::string> lines = split(text, '\n');
    if (lines.back().empty()) lines.pop_back();
    for (const std::string& line : lines) ids_[std::string(trimmed_end(line))] = lines_++;
  }

  std::optional<std::int64_t> find(const std::string& token) const {
    const auto at = ids_.find(token);
    return at == ids_.end() ? std::nullopt : std::optional(at->second);
  }
  /// The id of a token that is added behind `added` others.
  std::int64_t new_id(const std::string& token, std::int64_t added) const {
    if (std::ssize(ids_) == lines_) return lines_ + added;
    // transformers counts tokens, and the id would be that of another one.
    fail(ErrorCode::data, "{} has a token on two lines, and \"{}\", which is to be added, on none",
         path_.string(), token);
  }
  std::string json() const { return nlohmann::json(ids_).dump(); }

 private:
  const fs::path& path_;
  std::map<std::string, std::int64_t> ids_;
  std::int64_t lines_ = 0;
};

/// What files beside a vocabulary say of tokens, as transformers reads them: tokenizer_config.json
/// with added_tokens_decoder says all, else special_tokens_map.json says it first, and
/// added_tokens.json adds some.
class BertTokens {
 public:
  BertTokens(const Json& config, const WordPieceVocab& vocab, const fs::path& path)
      : config_(config), vocab_(vocab) {
    is_older_ = !config.contains("added_tokens_decoder");
    if (is_older_) map_ = json_beside(path, "special_tokens_map.json");
    if (is_older_) {
      add_older(json_beside(path, "added_tokens.json"), path);
    } else {
      add_decoder(config.at("added_tokens_decoder"), path);
    }
    for (const char* role : kRoles) {
      const std::string name = named(role);
      if (!name.empty()) add(name, said(role), false, true);
    }
    const Json* more = said("extra_special_tokens");
    if (more == nullptr || more->empty()) more = said("additional_special_tokens");
    for (const Json& token : more == nullptr ? Json::array() : *more) {
      const Json named = {{"token", token}};
      if (const auto name = configured_token(named, "token"); !name.empty()) {
        add(name, &token, false, true);
      }
    }
  }

  /// The token with this role; "" of none.
  std::string named(const std::string& role) const {
    const Json* const value = said(role);
    if (value == nullptr) return usual_token(role);
    return configured_token({{role, *value}}, role);
  }
  std::int64_t id_of(const std::string& token) const { return ids_.at(token); }
  const Json& entries() const { return entries_; }

 private:
  static std::string usual_token(const std::string& role) {
    const auto at = std::ranges::find(kBertTokens, role, &decltype(kBertTokens)::value_type::first);
    return at == kBertTokens.end() ? "" : at->second;
  }

  const Json* said(const std::string& key) const {
    for (const Json* file : {&map_, &config_}) {
      if (const auto at = file->find(key); at != file->end()) return &*at;
    }
    return nullptr;
  }

  bool is_named(const std::string& token) const {
    return std::ranges::any_of(kRoles, [&](const char* role) { return named(role) == token; });
  }

  /// `flags`: null, a text, or an object that may have some. Those who come first stay.
  void add(const std::string& token, const Json* flags, bool normalized, bool special) {
    if (ids_.contains(token)) return;
    const auto known = vocab_.find(token);
    const std::int64_t id = known ? *known : vocab_.new_id(token, added_++);
    Json entry = added_token_entry(id, token, special || is_named(token));
    entry["normalized"] = normalized;
    for (const char* key : {"single_word", "lstrip", "rstrip", "normalized"}) {
      if (flags != nullptr && flags->is_object() && flags->contains(key)) {
        entry[key] = (*flags)[key];
      }
    }
    entries_.push_back(std::move(entry));
    ids_[token] = id;
  }

  void add_decoder(const Json& listed, const fs::path& path) {
    std::map<std::int64_t, const Json*> by_id;
    if (!listed.is_object()) {
      fail(ErrorCode::data, "{}: added_tokens_decoder beside it is no object", path.string());
    }
    for (const auto& [id, token] : listed.items()) {
      by_id[std::strtoll(id.c_str(), nullptr, 10)] = &token;
    }
    for (const auto& [id, token] : by_id) {
      const bool special =
          token->is_object() && token->contains("special") && (*token)["special"] == true;
      add(configured_text(*token, "content"), token, !special, special);
    }
  }

  void add_older(const Json& listed, const fs::path& path) {
    std::map<std::int64_t, std::string> by_id;
    for (const auto& [token, id] : listed.items()) {
      if (!id.is_number_integer()) {
        fail(ErrorCode::data, "{}: \"{}\" has no id in added_tokens.json", path.string(), token);
      }
      by_id[id.get<std::int64_t>()] = token;
    }
    for (const auto& [id, token] : by_id) {
      const bool special = std::ranges::any_of(kRoles, [&, name = token](const char* role) {
        return said(role) != nullptr && named(role) == name;
      });
      add(token, nullptr, !special, special);
    }
  }

  const Json& config_;
  const WordPieceVocab& vocab_;
  bool is_older_ = false;
  Json map_ = Json::object();
  Json entries_ = Json::array();
  std::map<std::string, std::int64_t> ids_;
  std::int64_t added_ = 0;  // that the vocabulary has not
};

/// [CLS] A [SEP], [CLS] A [SEP] B [SEP].
Json bert_template(const BertTokens& tokens) {
  const std::string cls = tokens.named("cls_token"), sep = tokens.named("sep_token");
  const auto token = [](const std::string& id, int type) -> Json {
    return {{"SpecialToken", {{"id", id}, {"type_id", type}}}};
  };
  const auto text = [](const char* id, int type) -> Json {
    return {{"Sequence", {{"id", id}, {"type_id", type}}}};
  };
  Json named = Json::object();
  for (const std::string& name : {cls, sep}) {
    named[name] = {{"id", name}, {"ids", {tokens.id_of(name)}}, {"tokens", {name}}};
  }
  return {{"type", "TemplateProcessing"},
          {"single", {token(cls, 0), text("A", 0), token(sep, 0)}},
          {"pair", {token(cls, 0), text("A", 0), token(sep, 0), text("B", 1), token(sep, 1)}},
          {"special_tokens", named}};
}

}  // namespace

std::string from_word_pieces(const fs::path& path) {
  const Json config = json_beside(path, "tokenizer_config.json");
  require_bert(config, path);
  const WordPieceVocab vocab(path);
  const BertTokens tokens(config, vocab, path);
  for (const char* role : {"unk_token", "cls_token", "sep_token"}) {
    if (tokens.named(role).empty()) fail(ErrorCode::data, "{} has no {}", path.string(), role);
  }
  const Json json = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", tokens.entries()},
      {"normalizer",
       {{"type", "BertNormalizer"},
        {"clean_text", true},
        {"handle_chinese_chars", flag_of(config, "tokenize_chinese_chars", true, path)},
        {"strip_accents", flag_of(config, "strip_accents", nullptr, path)},
        {"lowercase", flag_of(config, "do_lower_case", true, path)}}},
      {"pre_tokenizer", {{"type", "BertPreTokenizer"}}},
      {"post_processor", bert_template(tokens)},
      {"decoder", {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}}}};
  return with_model(
      json, fmt::format(R"({{"type":"WordPiece","unk_token":{},"continuing_subword_prefix":"##",)"
                        R"("max_input_chars_per_word":100,"vocab":{}}})",
                        Json(tokens.named("unk_token")).dump(), vocab.json()));
}

}  // namespace heddle
