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

/// Of files from before the "type" key, by what only this kind of model has, as the reference does.
std::string type_of(const Section& model, const TokenizerBulk& bulk) {
  const auto has = [&](const char* key) { return model.find(key) != nullptr; };
  if (has("type")) return model.string("type");
  if (bulk.has_merges) return "BPE";
  if (bulk.has_pieces) return "Unigram";
  if (has("unk_token") && has("continuing_subword_prefix") && has("max_input_chars_per_word")) {
    return "WordPiece";
  }
  return bulk.has_vocab && has("unk_token") ? "WordLevel" : model.string("type");
}

}  // namespace

std::unique_ptr<const TokenModel> make_model(const Section& model, const TokenizerBulk& bulk,
                                             Vocabulary& vocabulary) {
  const std::string type = type_of(model, bulk);
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
