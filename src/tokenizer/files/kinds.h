#pragma once

#include <array>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "tokenizer/tokenizer.h"

namespace heddle {

/// Each gives the text of a tokenizer.json; `path` is the file, whose neighbours may say more.
std::string from_sentencepiece(std::string_view bytes, const std::filesystem::path& path);
std::string from_vocab_and_merges(const std::filesystem::path& vocab);
/// A vocab.txt, as BertTokenizer of transformers reads it.
std::string from_word_pieces(const std::filesystem::path& vocab);
/// Tokens that it has where nothing else is said, by role.
inline constexpr std::array<std::pair<const char*, const char*>, 5> kBertTokens = {
    {{"unk_token", "[UNK]"},
     {"sep_token", "[SEP]"},
     {"pad_token", "[PAD]"},
     {"cls_token", "[CLS]"},
     {"mask_token", "[MASK]"}}};

/// The object in the file `name` beside another, tokenizer_config.json say; empty where there is
/// none.
Json json_beside(const std::filesystem::path& path, const char* name);
/// The roles of tokens that tokenizer_config.json may name.
inline constexpr std::array kTokenRoles = {"bos_token", "eos_token", "unk_token", "pad_token",
                                           "sep_token", "cls_token", "mask_token"};
/// A token that tokenizer_config.json names, as a text or as an object with `content`; empty: none.
std::string configured_token(const Json& config, std::string_view key);
/// All tokens that tokenizer_config.json, which is `config`, and special_tokens_map.json beside a
/// file name, by their keys. As in transformers the map counts where the config lists no added
/// tokens, and then first.
TokenRoles tokens_named_beside(const std::filesystem::path& path, const Json& config);
/// What an object says; `otherwise` where it does not, or something else than a text.
std::string configured_text(const Json& config, const char* key, const char* otherwise = "");

/// A template that puts tokens before and behind a text, each with its id; null where there are
/// none.
Json surrounding_template(const std::vector<std::pair<std::string, std::int64_t>>& before,
                          const std::vector<std::pair<std::string, std::int64_t>>& after);

/// The text of `json`, an object, with `model`, given as text, as its last key.
std::string with_model(const Json& json, const std::string& model);

/// An entry of `added_tokens` that is matched in the text as it is.
Json added_token_entry(std::int64_t id, const std::string& content, bool special);

}  // namespace heddle
