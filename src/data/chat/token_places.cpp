#include "data/chat/token_places.h"

#include <algorithm>
#include <charconv>

#include "tokenizer/unicode/characters.h"

namespace heddle {
namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

/// How many bytes of `text` a token is that it begins with. A mark may be a space of the text.
std::optional<std::size_t> spelled_size(std::string_view text, std::string_view token) {
  std::size_t size = 0;
  while (!token.empty()) {
    const std::string_view rest = text.substr(size);
    const bool is_mark = token.starts_with(kSpaceMark);
    const bool is_space = is_mark && rest.starts_with(' ');
    const std::size_t read = is_mark ? kSpaceMark.size() : 1;
    if (!is_space && !rest.starts_with(token.substr(0, read))) return std::nullopt;
    size += is_space ? 1 : read;
    token.remove_prefix(read);
  }
  return size;
}

/// The same of any token: one for a byte, or one with a space before it that was put there.
std::optional<std::size_t> size_at(std::string_view text, std::string_view token) {
  if (const auto size = spelled_size(text, token)) return size;
  unsigned byte = 0;
  if (token.size() == 6 && token.starts_with("<0x") && token.ends_with('>') &&
      std::from_chars(token.data() + 3, token.data() + 5, byte, 16).ptr == token.data() + 5) {
    const char one = static_cast<char>(byte);
    return spelled_size(text, {&one, 1});
  }
  for (const std::string_view put : {kSpaceMark, std::string_view(" ")}) {
    if (token.starts_with(put)) return spelled_size(text, token.substr(put.size()));
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::vector<ChatTemplate::Stretch>> token_places(const Tokenizer& tokenizer,
                                                               std::string_view text,
                                                               std::span<const std::int32_t> ids) {
  const auto strips_behind = [&](std::int32_t id) {
    return std::ranges::any_of(tokenizer.added_tokens(), [&](const AddedToken& token) {
      return token.id == id && token.rstrip;
    });
  };
  std::vector<ChatTemplate::Stretch> places;
  std::size_t at = 0;
  for (const std::int32_t id : ids) {
    const std::string_view token = tokenizer.token_bytes(id);
    auto size = size_at(text.substr(at), token);
    std::size_t begin = at;
    if (!size) {  // blanks between may be stripped, by this token or the one before
      at += leading_white_space(text.substr(at));
      size = size_at(text.substr(at), token);
      if (!size) return std::nullopt;
      if (!places.empty() && strips_behind(ids[places.size() - 1])) {
        begin = places.back().end = at;
      }
    }
    at += *size;
    places.push_back({begin, at});
  }
  if (at + leading_white_space(text.substr(at)) < text.size()) return std::nullopt;
  if (!places.empty()) places.back().end = text.size();
  return places;
}

}  // namespace heddle
