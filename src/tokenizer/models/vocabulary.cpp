#include "tokenizer/models/vocabulary.h"

#include "base/error.h"
#include "tokenizer/section.h"

namespace heddle {

void Vocabulary::add(const std::string& token, std::int64_t id, const std::string& where) {
  if (id < 0 || id >= kMaxTokens) {
    fail(ErrorCode::data, "{}[\"{}\"] = {} is no token id (0 to {})", where, token, id,
         kMaxTokens - 1);
  }
  const auto at = static_cast<std::size_t>(id);
  if (at >= tokens_.size()) tokens_.resize(at + 1);
  if (!ids_.emplace(token, static_cast<std::int32_t>(id)).second) {
    fail(ErrorCode::data, "{}: token \"{}\" given twice", where, token);
  }
  if (tokens_[at]) fail(ErrorCode::data, "{}: id {} given twice", where, id);
  tokens_[at] = token;
}

void Vocabulary::add_or_move(const std::string& token, std::int32_t id) {
  const auto at = static_cast<std::size_t>(id);
  if (at >= tokens_.size()) tokens_.resize(at + 1);
  ids_[token] = id;
  tokens_[at] = token;
}

}  // namespace heddle
