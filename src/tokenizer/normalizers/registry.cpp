#include <algorithm>
#include <array>

#include "base/error.h"
#include "tokenizer/normalizers/kinds.h"

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

void add_normalizer(const Section& step, NormalizerList& list) {
  const std::string& type = step.string("type");
  if (type == "Sequence") {
    for (std::size_t i = 0; i < step.array("normalizers").size(); ++i) {
      add_normalizer(step.element("normalizers", i), list);
    }
    return;
  }
  const auto kind = std::find_if(kNormalizers.begin(), kNormalizers.end(),
                                 [&](const NormalizerKind& one) { return one.type == type; });
  if (kind == kNormalizers.end()) step.refuse(fmt::format("normalizer {}", type));
  list.push_back(kind->make(step));
}

}  // namespace heddle
