#include "tokenizer/byte_alphabet.h"
#include "tokenizer/decoders/kinds.h"
#include "tokenizer/utf8_replacer.h"

namespace heddle {
namespace {

/// The bytes that tokens spell, as one text; a token with other characters stands for itself.
class ByteLevelStep final : public WholeTokenStep {
 public:
  using WholeTokenStep::WholeTokenStep;
  void finish() override {
    std::string text;
    replacer_.finish(text);
    next_.push(text, true);
    next_.finish();
  }

 private:
  void take(const std::string& token) override {
    std::string text;
    const auto bytes = spelled_bytes(token);
    replacer_.append(bytes ? *bytes : token, text);
    if (!text.empty()) next_.push(text, false);
  }

  Utf8Replacer replacer_;
};

class ByteLevelDecoder final : public Decoder {
 public:
  std::unique_ptr<DecodeStep> start(DecodeStep& next) const override {
    return std::make_unique<ByteLevelStep>(next);
  }
  bool reads_spelled_bytes() const override { return true; }
};

}  // namespace

DecoderPtr make_byte_level_decoder(const Section&) { return std::make_unique<ByteLevelDecoder>(); }

}  // namespace heddle
