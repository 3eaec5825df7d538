#include <optional>

#include "tokenizer/decoders/kinds.h"
#include "tokenizer/patterns/pattern.h"

namespace heddle {
namespace {

/// The mark at the end of words becomes a space, except in the last token.
class WordEndStep final : public WholeTokenStep {
 public:
  WordEndStep(const Pattern& suffix, DecodeStep& next) : WholeTokenStep(next), suffix_(suffix) {}
  void finish() override {
    if (held_) next_.push(replaced(suffix_, *held_, ""), true);
    next_.finish();
  }

 private:
  void take(const std::string& token) override {
    if (held_) next_.push(replaced(suffix_, *held_, " "), true);
    held_ = token;
  }

  const Pattern& suffix_;
  std::optional<std::string> held_;
};

}  // namespace

DecoderPtr make_bpe_decoder(const Section& step) {
  return std::make_unique<SettingsDecoder<WordEndStep, Pattern>>(
      Pattern(step.string("suffix", "</w>"), true, step.path_of("suffix")));
}

}  // namespace heddle
