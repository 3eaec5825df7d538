#include <array>

#include "tokenizer/normalizers/kinds.h"
#include "tokenizer/stage.h"

namespace heddle {
namespace {

struct NormalizerKind {
  std::string_view type;
  NormalizerPtr (*make)(const Section&);
};

constexpr std::array<NormalizerKind, 13> kNormalizers = {{
    {"BertNormalizer", make_bert_normalizer},
    {"ByteLevel", make_byte_level_normalizer},
    {"Lowercase", make_lowercase},
    {"NFC", make_nfc},
    {"NFD", make_nfd},
    {"NFKC", make_nfkc},
    {"NFKD", make_nfkd},
    {"Nmt", make_nmt},
    {"Precompiled", make_precompiled},
    {"Prepend", make_prepend},
    {"Replace", make_replace},
    {"Strip", make_strip},
    {"StripAccents", make_strip_accents},
}};

}  // namespace

void add_normalizer(const Section& stage, NormalizerList& list) {
  for_steps(
      stage, "normalizers", "normalizer", kNormalizers,
      [&](const NormalizerKind& kind, const Section& step) { list.push_back(kind.make(step)); });
}

}  // namespace heddle
