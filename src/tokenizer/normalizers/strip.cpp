#include "tokenizer/normalizers/kinds.h"
#include "tokenizer/unicode/characters.h"

namespace heddle {
namespace {

/// Removes whitespace at the ends.
class StripNormalizer final : public Normalizer {
 public:
  StripNormalizer(bool left, bool right) : left_(left), right_(right) {}

  void apply(NormalText& text) const override {
    std::string_view rest = text.text;
    if (const std::size_t blanks = left_ ? leading_white_space(rest) : 0; blanks > 0) {
      rest.remove_prefix(blanks);
      text.at_start = false;
    }
    while (right_ && !rest.empty()) {
      const std::size_t last = last_character(rest);
      const CodePoint c = decode_utf8(rest.data() + last, rest.data() + rest.size());
      if (class_of(c.value) != CharClass::space) break;
      rest = rest.substr(0, last);
    }
    text.text = std::string(rest);
  }

 private:
  bool left_, right_;
};

}  // namespace

NormalizerPtr make_strip(const Section& step) {
  return std::make_unique<StripNormalizer>(step.flag("strip_left", true),
                                           step.flag("strip_right", true));
}

}  // namespace heddle
