#include "tokenizer/normalizers/kinds.h"

namespace heddle {
namespace {

/// Puts something before a text, unless that is empty.
class PrependNormalizer final : public Normalizer {
 public:
  explicit PrependNormalizer(std::string prefix) : prefix_(std::move(prefix)) {}
  void apply(NormalText& text) const override {
    if (!text.text.empty() && !text.continues) text.text.insert(0, prefix_);
  }
  bool is_local_at_spaces() const override { return true; }

 private:
  std::string prefix_;
};

}  // namespace

NormalizerPtr make_prepend(const Section& step) {
  return std::make_unique<PrependNormalizer>(step.string("prepend"));
}

}  // namespace heddle
