#include "tokenizer/normalizers/by_character.h"
#include "tokenizer/normalizers/kinds.h"

namespace heddle {
namespace {

class LowercaseNormalizer final : public Normalizer {
 public:
  void apply(NormalText& text) const override {
    rewrite_characters(
        text, [](char32_t c, std::string_view, std::string& out) { append_lowercase(c, out); });
  }
};

}  // namespace

NormalizerPtr make_lowercase(const Section&) { return std::make_unique<LowercaseNormalizer>(); }

}  // namespace heddle
