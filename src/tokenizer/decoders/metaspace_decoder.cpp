#include "tokenizer/decoders/kinds.h"
#include "tokenizer/metaspace.h"

namespace heddle {
namespace {

/// Marks become spaces; those of the first token vanish where one was put before the text.
class MetaspaceDecodeStep final : public LinkedStep {
 public:
  MetaspaceDecodeStep(const Metaspace& metaspace, DecodeStep& next)
      : LinkedStep(next), space_(metaspace) {}

  void push(std::string_view text, bool ends) override {
    const bool drops = is_first_ && space_.prepend != Metaspace::Prepend::never;
    std::string out;
    while (!text.empty()) {
      const std::size_t mark = text.find(space_.replacement);
      out += text.substr(0, mark);
      if (mark == std::string_view::npos) break;
      if (!drops) out += ' ';
      text.remove_prefix(mark + space_.replacement.size());
    }
    if (ends) is_first_ = false;
    next_.push(out, ends);
  }

 private:
  const Metaspace& space_;
  bool is_first_ = true;
};

}  // namespace

DecoderPtr make_metaspace_decoder(const Section& step) {
  return std::make_unique<SettingsDecoder<MetaspaceDecodeStep, Metaspace>>(read_metaspace(step));
}

}  // namespace heddle
