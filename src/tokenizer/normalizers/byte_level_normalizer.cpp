#include "tokenizer/byte_alphabet.h"
#include "tokenizer/normalizers/kinds.h"

namespace heddle {
namespace {

class ByteSpeller final : public Normalizer {
 public:
  void apply(NormalText& text) const override { text.text = spell_bytes(text.text); }
  bool is_local_at_spaces() const override { return true; }
};

}  // namespace

NormalizerPtr make_byte_level_normalizer(const Section&) { return std::make_unique<ByteSpeller>(); }

}  // namespace heddle
