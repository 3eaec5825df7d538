#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace heddle {

/// A token matched in the text itself, before any splitting (an entry of `added_tokens`).
struct AddedToken {
  std::int32_t id = 0;
  std::string content = {};
  bool single_word = false;  ///< only where no word character adjoins
  bool lstrip = false;       ///< takes the whitespace before it
  bool rstrip = false;       ///< takes the whitespace after it
  bool normalized = false;   ///< matched after normalisation, against the normalised content
  bool special = false;      ///< not text: skipped by decode on request
};

/// Finds added tokens in text: leftmost, then longest. Immutable and thread-safe.
class AddedTokenMatcher {
 public:
  AddedTokenMatcher() : nodes_(1) {}

  /// An empty `spelling` is ignored. Of two tokens with one spelling the first counts.
  void add(const AddedToken& token, std::string_view spelling);
  bool empty() const { return tokens_.empty(); }

  /// Calls `text_sink` with the text between matches and `token_sink` with the id of each match, in
  /// order; empty texts are left out. `parse_special` off leaves special tokens in the text.
  void split(std::string_view text, bool parse_special,
             const std::function<void(std::string_view)>& text_sink,
             const std::function<void(std::int32_t)>& token_sink) const;

 private:
  struct Node {
    std::int32_t token = -1;  // index into tokens_
    std::vector<std::pair<char, std::uint32_t>> children;
  };
  struct Match {
    std::size_t begin, end;
    std::int32_t token;  // -1: none
  };

  Match find(std::string_view text, std::size_t from) const;
  std::size_t next_candidate(std::string_view text, std::size_t from) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;  // a trie; node 0 is the root
  std::string first_bytes_;
  std::array<bool, 256> is_first_byte_{};
};

}  // namespace heddle
