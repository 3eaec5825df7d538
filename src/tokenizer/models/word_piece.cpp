#include <limits>

#include "base/error.h"
#include "tokenizer/models/kinds.h"
#include "tokenizer/unicode/characters.h"

namespace heddle {
namespace {

/// Takes the longest token at the start of a word, then the longest that continues it, and so on. A
/// word of which something is left is unknown as a whole.
class WordPiece final : public TokenModel {
 public:
  WordPiece(const Vocabulary& vocabulary, std::int32_t unknown, std::string prefix,
            std::int64_t max_characters)
      : ids_(vocabulary),
        unknown_(unknown),
        prefix_(std::move(prefix)),
        max_characters_(max_characters) {
    for (const auto& [token, id] : ids_.ids()) longest_ = std::max(longest_, token.size());
  }

  void encode(std::string_view word, std::vector<std::int32_t>& out) const override {
    const std::size_t begin = out.size();
    std::int64_t characters = 0;
    for_each_character(word, [&](char32_t, std::string_view) { ++characters; });
    if (characters > max_characters_ || !put_pieces(word, out)) {
      out.resize(begin);
      out.push_back(unknown_);
    }
  }

 private:
  bool put_pieces(std::string_view word, std::vector<std::int32_t>& out) const {
    std::string spelled;
    for (std::size_t start = 0; start < word.size();) {
      const std::string_view prefix = start == 0 ? "" : std::string_view(prefix_);
      std::size_t length = std::min(word.size() - start, longest_);
      for (;; length = last_character(word.substr(start, length))) {
        if (length == 0) return false;
        spelled.assign(prefix).append(word.substr(start, length));
        if (const auto id = ids_.find(spelled)) {
          out.push_back(*id);
          break;
        }
      }
      start += length;
    }
    return true;
  }

  const Vocabulary& ids_;
  std::int32_t unknown_;
  std::string prefix_;
  std::int64_t max_characters_;
  std::size_t longest_ = 0;  // bytes
};

}  // namespace

TokenModelPtr make_word_piece(const Section& model, const TokenizerBulk& bulk,
                              Vocabulary& vocabulary) {
  read_vocabulary(model, bulk, vocabulary);
  const std::string unknown = model.string("unk_token", "[UNK]");
  const auto id = vocabulary.find(unknown);
  if (!id) {
    fail(ErrorCode::data, "{}: token \"{}\" is not in the vocabulary", model.path_of("unk_token"),
         unknown);
  }
  return std::make_unique<WordPiece>(
      vocabulary, *id, model.string("continuing_subword_prefix", "##"),
      model.count("max_input_chars_per_word", 100, std::numeric_limits<std::int32_t>::max()));
}

}  // namespace heddle
