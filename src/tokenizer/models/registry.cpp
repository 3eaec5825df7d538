#include <algorithm>
#include <array>

#include "base/error.h"
#include "tokenizer/models/kinds.h"

namespace heddle {
namespace {

struct ModelKind {
  std::string_view type;
  TokenModelPtr (*make)(const Section&, const TokenizerBulk&, Vocabulary&);
};

constexpr std::array<ModelKind, 4> kModels = {{
    {"BPE", make_bpe},
    {"Unigram", make_unigram},
    {"WordLevel", make_word_level},
    {"WordPiece", make_word_piece},
}};

}  // namespace

std::unique_ptr<const TokenModel> make_model(const Section& model, const TokenizerBulk& bulk,
                                             Vocabulary& vocabulary) {
  // Files from before the "type" key have merges all the same.
  const std::string type =
      model.find("type") == nullptr && bulk.has_merges ? "BPE" : model.string("type");
  const auto kind = std::find_if(kModels.begin(), kModels.end(),
                                 [&](const ModelKind& one) { return one.type == type; });
  if (kind == kModels.end()) {
    model.refuse(fmt::format("model type {}", type),
                 "Heddle reads BPE, Unigram, WordPiece and WordLevel");
  }
  return kind->make(model, bulk, vocabulary);
}

void read_vocabulary(const Section& model, const TokenizerBulk& bulk, Vocabulary& vocabulary) {
  const std::string where = model.path_of("vocab");
  if (!bulk.has_vocab) fail(ErrorCode::data, "{} is missing or not an object", where);
  if (bulk.vocab.empty()) fail(ErrorCode::data, "{} is empty", where);
  for (const auto& [token, id] : bulk.vocab) vocabulary.add(token, id, where);
}

}  // namespace heddle
