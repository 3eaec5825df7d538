#include "tokenizer/decoders/kinds.h"
#include "tokenizer/patterns/pattern.h"

namespace heddle {
namespace {

struct Replacement {
  Pattern pattern;
  std::string content;
};

/// Replaces within each token.
class ReplaceStep final : public WholeTokenStep {
 public:
  ReplaceStep(const Replacement& replacement, DecodeStep& next)
      : WholeTokenStep(next), replacement_(replacement) {}

 private:
  void take(const std::string& token) override {
    next_.push(replaced(replacement_.pattern, token, replacement_.content), true);
  }

  const Replacement& replacement_;
};

}  // namespace

DecoderPtr make_replace_decoder(const Section& step) {
  return std::make_unique<SettingsDecoder<ReplaceStep, Replacement>>(
      Replacement{read_pattern(step), step.string("content")});
}

}  // namespace heddle
