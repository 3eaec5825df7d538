#include <limits>

#include "tokenizer/decoders/kinds.h"
#include "tokenizer/unicode/characters.h"

namespace heddle {
namespace {

struct StripRule {
  std::string content;       ///< one character
  std::int64_t start, stop;  ///< how many of it go at the ends of a token
};

class StripStep final : public LinkedStep {
 public:
  StripStep(const StripRule& rule, DecodeStep& next)
      : LinkedStep(next), rule_(rule), may_cut_(rule.start) {}

  void push(std::string_view text, bool ends) override {
    std::string out;
    for_each_character(text, [&](char32_t, std::string_view bytes) { take(bytes, out); });
    if (ends) {
      may_cut_ = rule_.start;
      held_ = 0;
    }
    next_.push(out, ends);
  }

 private:
  void take(std::string_view bytes, std::string& out) {
    const bool is_content = bytes == rule_.content;
    if (is_content && may_cut_ > 0) {
      --may_cut_;
      return;
    }
    may_cut_ = 0;
    // What may be cut at the end is held back until something else follows.
    if (is_content && held_ < rule_.stop) {
      ++held_;
      return;
    }
    if (!is_content) {
      for (; held_ > 0; --held_) out += rule_.content;
    }
    out += bytes;
  }

  const StripRule& rule_;
  std::int64_t may_cut_;  // at the start of this token
  std::int64_t held_ = 0;
};

}  // namespace

DecoderPtr make_strip_decoder(const Section& step) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  return std::make_unique<SettingsDecoder<StripStep, StripRule>>(StripRule{
      step.character("content"), step.count("start", 0, kMost), step.count("stop", 0, kMost)});
}

}  // namespace heddle
