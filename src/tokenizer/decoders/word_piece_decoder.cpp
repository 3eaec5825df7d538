#include <array>

#include "tokenizer/decoders/kinds.h"

namespace heddle {
namespace {

struct WordPieceRule {
  std::string prefix;  ///< of tokens that continue a word
  bool cleans_up;
};

/// What English tokenizers put apart is put together, in this order.
constexpr std::array<std::pair<std::string_view, std::string_view>, 11> kCleanUp = {
    {{" .", "."},
     {" ?", "?"},
     {" !", "!"},
     {" ,", ","},
     {" ' ", "'"},
     {" n't", "n't"},
     {" 'm", "'m"},
     {" do not", " don't"},
     {" 's", "'s"},
     {" 've", "'ve"},
     {" 're", "'re"}}};

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != std::string::npos;
       at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

class WordPieceStep final : public WholeTokenStep {
 public:
  WordPieceStep(const WordPieceRule& rule, DecodeStep& next) : WholeTokenStep(next), rule_(rule) {}

 private:
  void take(const std::string& token) override {
    std::string text = is_first_                         ? token
                       : token.starts_with(rule_.prefix) ? token.substr(rule_.prefix.size())
                                                         : " " + token;
    is_first_ = false;
    if (rule_.cleans_up) {
      for (const auto& [from, to] : kCleanUp) replace_all(text, from, to);
    }
    next_.push(text, true);
  }

  const WordPieceRule& rule_;
  bool is_first_ = true;
};

}  // namespace

DecoderPtr make_word_piece_decoder(const Section& step) {
  return std::make_unique<SettingsDecoder<WordPieceStep, WordPieceRule>>(
      WordPieceRule{step.string("prefix", "##"), step.flag("cleanup", true)});
}

}  // namespace heddle
