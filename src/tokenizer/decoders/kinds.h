#pragma once

#include "tokenizer/decoders/decoder.h"
#include "tokenizer/section.h"

namespace heddle {

using DecoderPtr = std::unique_ptr<const Decoder>;

/// One function for each kind of `decoder`, in a file of its own; registry.cpp lists them.
DecoderPtr make_bpe_decoder(const Section& step);
DecoderPtr make_byte_fallback_decoder(const Section& step);
DecoderPtr make_byte_level_decoder(const Section& step);
DecoderPtr make_fuse_decoder(const Section& step);
DecoderPtr make_metaspace_decoder(const Section& step);
DecoderPtr make_replace_decoder(const Section& step);
DecoderPtr make_strip_decoder(const Section& step);
DecoderPtr make_word_piece_decoder(const Section& step);

/// A decoder that has nothing but its settings, which each of its steps gets.
template <class Step, class Settings>
class SettingsDecoder final : public Decoder {
 public:
  explicit SettingsDecoder(Settings settings) : settings_(std::move(settings)) {}
  std::unique_ptr<DecodeStep> start(DecodeStep& next) const override {
    return std::make_unique<Step>(settings_, next);
  }

 private:
  Settings settings_;
};

}  // namespace heddle
