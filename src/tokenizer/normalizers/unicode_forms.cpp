#include "tokenizer/normalizers/kinds.h"
#include "tokenizer/unicode/normal_forms.h"

namespace heddle {
namespace {

class UnicodeForm final : public Normalizer {
 public:
  explicit UnicodeForm(NormalForm form) : form_(form) {}
  void apply(NormalText& text) const override { text.text = to_normal_form(text.text, form_); }
  bool is_local_at_spaces() const override { return true; }

 private:
  NormalForm form_;
};

}  // namespace

NormalizerPtr make_nfc(const Section&) { return std::make_unique<UnicodeForm>(NormalForm::nfc); }
NormalizerPtr make_nfd(const Section&) { return std::make_unique<UnicodeForm>(NormalForm::nfd); }
NormalizerPtr make_nfkc(const Section&) { return std::make_unique<UnicodeForm>(NormalForm::nfkc); }
NormalizerPtr make_nfkd(const Section&) { return std::make_unique<UnicodeForm>(NormalForm::nfkd); }

}  // namespace heddle
