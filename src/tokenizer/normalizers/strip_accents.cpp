#include "tokenizer/normalizers/by_character.h"
#include "tokenizer/normalizers/kinds.h"

namespace heddle {
namespace {

class AccentStripper final : public Normalizer {
 public:
  void apply(NormalText& text) const override {
    rewrite_characters(text, [](char32_t c, std::string_view bytes, std::string& out) {
      if (!has(c, CharFlag::accent)) out += bytes;
    });
  }
  bool is_local_at_spaces() const override { return true; }
};

}  // namespace

NormalizerPtr make_strip_accents(const Section&) { return std::make_unique<AccentStripper>(); }

}  // namespace heddle
