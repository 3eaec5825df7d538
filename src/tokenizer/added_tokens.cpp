#include "tokenizer/added_tokens.h"

#include <algorithm>
#include <cstring>

#include "tokenizer/unicode/characters.h"

namespace heddle {
namespace {

CodePoint decode_at(std::string_view text, std::size_t at) {
  return decode_utf8(text.data() + at, text.data() + text.size());
}

bool adjoins_words(std::string_view text, std::size_t begin, std::size_t end) {
  const auto before = text.substr(0, begin);
  if (!before.empty() && has(decode_at(before, last_character(before)).value, CharFlag::word)) {
    return true;
  }
  return end < text.size() && has(decode_at(text, end).value, CharFlag::word);
}

std::size_t skip_space_left(std::string_view text, std::size_t begin) {
  while (begin > 0) {
    const auto before = text.substr(0, begin);
    const auto at = last_character(before);
    if (class_of(decode_at(before, at).value) != CharClass::space) break;
    begin = at;
  }
  return begin;
}

}  // namespace

void AddedTokenMatcher::add(const AddedToken& token, std::string_view spelling) {
  std::uint32_t node = 0;
  for (const char c : spelling) {
    auto& children = nodes_[node].children;
    const auto child = std::find_if(children.begin(), children.end(),
                                    [&](const auto& edge) { return edge.first == c; });
    if (child != children.end()) {
      node = child->second;
    } else {
      const auto next = static_cast<std::uint32_t>(nodes_.size());
      children.emplace_back(c, next);
      nodes_.emplace_back();
      node = next;
    }
  }
  if (nodes_[node].token >= 0) return;
  nodes_[node].token = static_cast<std::int32_t>(tokens_.size());
  tokens_.push_back(token);
  if (!is_first_byte_[static_cast<unsigned char>(spelling[0])]) first_bytes_ += spelling[0];
  is_first_byte_[static_cast<unsigned char>(spelling[0])] = true;
}

std::size_t AddedTokenMatcher::next_candidate(std::string_view text, std::size_t from) const {
  if (from >= text.size()) return text.size();
  if (first_bytes_.size() == 1) {
    const void* hit = std::memchr(text.data() + from, first_bytes_[0], text.size() - from);
    return hit == nullptr ? text.size()
                          : static_cast<std::size_t>(static_cast<const char*>(hit) - text.data());
  }
  while (from < text.size() && !is_first_byte_[static_cast<unsigned char>(text[from])]) ++from;
  return from;
}

AddedTokenMatcher::Match AddedTokenMatcher::find(std::string_view text, std::size_t from) const {
  for (std::size_t begin = next_candidate(text, from); begin < text.size();
       begin = next_candidate(text, begin + 1)) {
    Match match{begin, begin, -1};
    std::uint32_t node = 0;
    for (std::size_t at = begin; at < text.size(); ++at) {
      const auto& children = nodes_[node].children;
      const auto child = std::find_if(children.begin(), children.end(),
                                      [&](const auto& edge) { return edge.first == text[at]; });
      if (child == children.end()) break;
      node = child->second;
      if (nodes_[node].token >= 0) match = {begin, at + 1, nodes_[node].token};
    }
    if (match.token >= 0) return match;
  }
  return {text.size(), text.size(), -1};
}

void AddedTokenMatcher::split(std::string_view text, bool parse_special,
                              const std::function<void(std::string_view)>& text_sink,
                              const std::function<void(std::int32_t)>& token_sink) const {
  std::size_t done = 0;  // text before it has been handed out
  for (Match match = find(text, 0); match.token >= 0; match = find(text, match.end)) {
    const AddedToken& token = tokens_[static_cast<std::size_t>(match.token)];
    if (token.special && !parse_special) continue;
    if (token.single_word && adjoins_words(text, match.begin, match.end)) continue;
    std::size_t begin = match.begin, end = match.end;
    if (token.lstrip) begin = std::max(skip_space_left(text, begin), done);
    if (token.rstrip) end += leading_white_space(text.substr(end));
    if (begin >= end) continue;  // the token before has taken all of it
    if (done < begin) text_sink(text.substr(done, begin - done));
    token_sink(token.id);
    done = end;
  }
  if (done < text.size()) text_sink(text.substr(done));
}

}  // namespace heddle
