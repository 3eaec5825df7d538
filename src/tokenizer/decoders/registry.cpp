#include <array>

#include "tokenizer/decoders/kinds.h"
#include "tokenizer/stage.h"

namespace heddle {
namespace {

constexpr std::size_t kMaxDecoders = 32;

struct DecoderKind {
  std::string_view type;
  DecoderPtr (*make)(const Section&);
};

constexpr std::array<DecoderKind, 8> kDecoders = {{
    {"BPEDecoder", make_bpe_decoder},
    {"ByteFallback", make_byte_fallback_decoder},
    {"ByteLevel", make_byte_level_decoder},
    {"Fuse", make_fuse_decoder},
    {"Metaspace", make_metaspace_decoder},
    {"Replace", make_replace_decoder},
    {"Strip", make_strip_decoder},
    {"WordPiece", make_word_piece_decoder},
}};

/// What stands for no decoder: a space between tokens.
class JoinStep final : public LinkedStep {
 public:
  using LinkedStep::LinkedStep;
  void push(std::string_view text, bool ends) override {
    if (starts_token_ && !is_first_) next_.push(" ", false);
    is_first_ = false;
    starts_token_ = ends;
    next_.push(text, ends);
  }

 private:
  bool is_first_ = true, starts_token_ = true;
};

}  // namespace

void add_decoder(const Section& stage, DecoderList& list) {
  for_steps(stage, "decoders", "decoder", kDecoders,
            [&](const DecoderKind& kind, const Section& step) {
              list.push_back(kind.make(step));
              if (list.size() <= kMaxDecoders) return;
              step.refuse(fmt::format("a chain of more than {} decoders", kMaxDecoders));
            });
}

class Decoding::End final : public DecodeStep {
 public:
  void push(std::string_view text, bool) override { out->append(text); }
  void finish() override {}
  std::string* out = nullptr;
};

Decoding::Decoding(const DecoderList& decoders) : end_(std::make_unique<End>()) {
  DecodeStep* next = end_.get();
  for (auto decoder = decoders.rbegin(); decoder != decoders.rend(); ++decoder) {
    steps_.push_back((*decoder)->start(*next));
    next = steps_.back().get();
  }
  if (steps_.empty()) steps_.push_back(std::make_unique<JoinStep>(*next));
}

Decoding::~Decoding() = default;

void Decoding::push(std::string_view token, std::string& out) {
  end_->out = &out;
  steps_.back()->push(token, true);
}

void Decoding::finish(std::string& out) {
  end_->out = &out;
  steps_.back()->finish();
}

}  // namespace heddle
