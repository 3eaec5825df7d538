#include "base/error.h"
#include "tokenizer/models/kinds.h"

namespace heddle {
namespace {

/// Every word is a token, or unknown.
class WordLevel final : public TokenModel {
 public:
  WordLevel(const Vocabulary& vocabulary, std::int32_t unknown)
      : ids_(vocabulary), unknown_(unknown) {}
  void encode(std::string_view word, std::vector<std::int32_t>& out) const override {
    out.push_back(ids_.find(word).value_or(unknown_));
  }

 private:
  const Vocabulary& ids_;
  std::int32_t unknown_;
};

}  // namespace

TokenModelPtr make_word_level(const Section& model, const TokenizerBulk& bulk,
                              Vocabulary& vocabulary) {
  read_vocabulary(model, bulk, vocabulary);
  const std::string unknown = model.string("unk_token", "<unk>");
  const auto id = vocabulary.find(unknown);
  if (!id) {
    fail(ErrorCode::data, "{}: token \"{}\" is not in the vocabulary", model.path_of("unk_token"),
         unknown);
  }
  return std::make_unique<WordLevel>(vocabulary, *id);
}

}  // namespace heddle
