#include "tokenizer/decoders/kinds.h"

namespace heddle {
namespace {

/// All tokens become one.
class FuseStep final : public LinkedStep {
 public:
  using LinkedStep::LinkedStep;
  void push(std::string_view text, bool) override { next_.push(text, false); }
  void finish() override {
    next_.push("", true);
    next_.finish();
  }
};

class FuseDecoder final : public Decoder {
 public:
  std::unique_ptr<DecodeStep> start(DecodeStep& next) const override {
    return std::make_unique<FuseStep>(next);
  }
};

}  // namespace

DecoderPtr make_fuse_decoder(const Section&) { return std::make_unique<FuseDecoder>(); }

}  // namespace heddle
