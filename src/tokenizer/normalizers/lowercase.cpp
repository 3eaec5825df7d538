#include <algorithm>

#include "tokenizer/normalizers/by_character.h"
#include "tokenizer/normalizers/kinds.h"

namespace heddle {
namespace {

class LowercaseNormalizer final : public Normalizer {
 public:
  void apply(NormalText& text) const override {
    const bool is_ascii =
        std::ranges::all_of(text.text, [](char c) { return static_cast<signed char>(c) >= 0; });
    if (is_ascii) {
      for (char& c : text.text) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
      return;
    }
    rewrite_characters(
        text, [](char32_t c, std::string_view, std::string& out) { append_lowercase(c, out); });
  }
  bool is_local_at_spaces() const override { return true; }
};

}  // namespace

NormalizerPtr make_lowercase(const Section&) { return std::make_unique<LowercaseNormalizer>(); }

}  // namespace heddle
