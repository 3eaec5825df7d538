#include <optional>

#include "base/strings.h"
#include "tokenizer/decoders/kinds.h"

namespace heddle {
namespace {

std::optional<char> byte_of(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return std::nullopt;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    if (digit < 0) return std::nullopt;
    value = value * 16 + digit;
  }
  return static_cast<char>(value);
}

/// Runs of tokens like <0x0A> become the text that their bytes spell, or, where a run is not valid
/// UTF-8, U+FFFD for each of its bytes.
class ByteFallbackStep final : public WholeTokenStep {
 public:
  using WholeTokenStep::WholeTokenStep;
  void finish() override {
    flush();
    next_.finish();
  }

 private:
  void take(const std::string& token) override {
    if (const auto byte = byte_of(token)) {
      bytes_.push_back(*byte);
      return;
    }
    flush();
    next_.push(token, true);
  }
  void flush() {
    if (bytes_.empty()) return;
    if (valid_utf8_prefix(bytes_) == bytes_.size()) {
      next_.push(bytes_, true);
    } else {
      for (std::size_t i = 0; i < bytes_.size(); ++i) next_.push("\xEF\xBF\xBD", true);
    }
    bytes_.clear();
  }

  std::string bytes_;
};

class ByteFallbackDecoder final : public Decoder {
 public:
  std::unique_ptr<DecodeStep> start(DecodeStep& next) const override {
    return std::make_unique<ByteFallbackStep>(next);
  }
};

}  // namespace

DecoderPtr make_byte_fallback_decoder(const Section&) {
  return std::make_unique<ByteFallbackDecoder>();
}

}  // namespace heddle
