#include "tokenizer/tokenizer_json.h"

#include <unordered_set>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "tokenizer/section.h"
#include "tokenizer/tokenizer_document.h"

namespace heddle {
namespace {

AddedToken read_added_token(const Section& entry) {
  AddedToken token{.id = entry.id("id"),
                   .content = entry.string("content"),
                   .single_word = entry.flag("single_word", false),
                   .lstrip = entry.flag("lstrip", false),
                   .rstrip = entry.flag("rstrip", false),
                   .normalized = entry.flag("normalized", !entry.flag("special", false)),
                   .special = entry.flag("special", false)};
  if (token.content.empty()) fail(ErrorCode::data, "{}.content is empty", entry.path());
  return token;
}

void read_added_tokens(const Section& file, TokenizerParts& parts) {
  if (file.find("added_tokens") == nullptr) return;
  const Vocabulary& vocabulary = *parts.vocabulary;
  std::unordered_set<std::string> seen;
  std::unordered_set<std::int32_t> taken;
  for (std::size_t i = 0; i < file.array("added_tokens").size(); ++i) {
    const Section entry = file.element("added_tokens", i);
    AddedToken token = read_added_token(entry);
    if (!seen.insert(token.content).second) {
      fail(ErrorCode::data, "{}: token \"{}\" given twice", entry.path(), token.content);
    }
    const auto id = static_cast<std::size_t>(token.id);
    const auto in_vocab = vocabulary.find(token.content);
    const bool is_taken = !taken.insert(token.id).second ||
                          (id < vocabulary.size() && vocabulary.token(id).has_value());
    if (in_vocab ? *in_vocab != token.id : is_taken) {
      fail(ErrorCode::data, "{}: \"{}\" has id {}, but the vocabulary has {}", entry.path(),
           token.content, token.id,
           in_vocab ? fmt::format("id {} for it", *in_vocab) : "another token there");
    }
    parts.added.push_back(std::move(token));
  }
}

std::size_t size_with_added(const TokenizerParts& parts) {
  std::size_t size = parts.vocabulary->size();
  for (const AddedToken& token : parts.added) {
    size = std::max(size, static_cast<std::size_t>(token.id) + 1);
  }
  return size;
}

/// Words of bytes that are spelled as characters need not be spelled where the model can do
/// without, and words that nothing joins may be cut.
void simplify(TokenizerParts& parts) {
  if (parts.pretokenizer.ends_with_spelling()) {
    if (auto of_bytes = parts.model->for_bytes()) {
      parts.model = std::move(of_bytes);
      parts.pretokenizer.remove_last();
      parts.is_byte_level =
          parts.decoders.size() == 1 && parts.decoders.front()->reads_spelled_bytes();
    }
  }
  if (const Scan cut = parts.model->cut()) parts.pretokenizer.add(cut);
}

}  // namespace

TokenizerParts parse_tokenizer_json(std::string_view text, const std::string& where) {
  TokenizerBulk bulk;
  const Json document = read_tokenizer_document(text, where, bulk);
  if (!document.is_object()) fail(ErrorCode::data, "{}: not an object", where);
  const Section file(document, where + ": ");
  for (const char* key : {"truncation", "padding"}) {
    if (file.find(key) != nullptr) {
      log_info("{}: {} concerns batches of texts and is ignored", where, key);
    }
  }
  TokenizerParts parts;
  parts.model = make_model(file.section("model"), bulk, *parts.vocabulary);
  read_added_tokens(file, parts);
  if (file.find("normalizer") != nullptr) {
    add_normalizer(file.section("normalizer"), parts.normalizers);
  }
  if (file.find("pre_tokenizer") != nullptr) {
    add_pretokenizer(file.section("pre_tokenizer"), parts.pretokenizer);
  }
  if (file.find("post_processor") != nullptr) {
    add_post_processor(file.section("post_processor"), size_with_added(parts), parts.around);
  }
  if (file.find("decoder") != nullptr) add_decoder(file.section("decoder"), parts.decoders);
  simplify(parts);
  return parts;
}

}  // namespace heddle
