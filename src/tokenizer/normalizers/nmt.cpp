#include "tokenizer/normalizers/by_character.h"
#include "tokenizer/normalizers/kinds.h"

namespace heddle {
namespace {

bool is_removed(char32_t c) {
  return (c >= 0x01 && c <= 0x08) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F ||
         c == 0x8F || c == 0x9F;
}

bool becomes_space(char32_t c) {
  return c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 ||
         (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF ||
         c == 0xFFFD;
}

/// SentencePiece's rules for machine translation, without the forms of characters.
class NmtNormalizer final : public Normalizer {
 public:
  void apply(NormalText& text) const override {
    rewrite_characters(text, [](char32_t c, std::string_view bytes, std::string& out) {
      if (is_removed(c)) return;
      out += becomes_space(c) ? " " : bytes;
    });
  }
  bool is_local_at_spaces() const override { return true; }
};

}  // namespace

NormalizerPtr make_nmt(const Section&) { return std::make_unique<NmtNormalizer>(); }

}  // namespace heddle
