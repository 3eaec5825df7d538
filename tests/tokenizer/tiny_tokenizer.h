#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/tokenizer.h"

namespace heddle {

/// A tokenizer.json with the 256 bytes (id = byte) and what a test adds to it.
struct TinyTokenizer {
  std::vector<std::pair<std::string, std::string>> merges;  // as bytes
  std::vector<std::string> extra_words;                     // in the vocabulary, by no merge
  Json added_tokens = Json::array();
  Json normalizer = nullptr;
  Json pre_tokenizer = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  Json post_processor = nullptr;
  Json decoder = {{"type", "ByteLevel"}};
  bool ignore_merges = false;

  Json json() const {
    Json vocab = Json::object(), list = Json::array();
    for (int b = 0; b < 256; ++b) {
      const char byte = static_cast<char>(b);
      vocab[spell_bytes({&byte, 1})] = b;
    }
    for (const auto& [left, right] : merges) {
      vocab.emplace(spell_bytes(left + right), vocab.size());
      list.push_back(spell_bytes(left) + " " + spell_bytes(right));
    }
    for (const auto& word : extra_words) vocab.emplace(spell_bytes(word), vocab.size());
    return {{"version", "1.0"},
            {"truncation", nullptr},
            {"padding", nullptr},
            {"added_tokens", added_tokens},
            {"normalizer", normalizer},
            {"pre_tokenizer", pre_tokenizer},
            {"post_processor", post_processor},
            {"decoder", decoder},
            {"model",
             {{"type", "BPE"},
              {"dropout", nullptr},
              {"unk_token", nullptr},
              {"ignore_merges", ignore_merges},
              {"vocab", vocab},
              {"merges", list}}}};
  }
  Tokenizer load() const { return Tokenizer::from_json(json().dump(), "tiny.json"); }
};

inline Json added_token(int id, const std::string& content, Json flags = Json::object()) {
  Json token = {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
                {"rstrip", false}, {"normalized", false}, {"special", true}};
  token.update(flags);
  return token;
}

}  // namespace heddle
