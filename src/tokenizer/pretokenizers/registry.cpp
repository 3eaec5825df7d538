#include <algorithm>
#include <array>

#include "tokenizer/pretokenizers/kinds.h"
#include "tokenizer/stage.h"

namespace heddle {
namespace {

/// More than any tokenizer in use has; bounds the depth of calls.
constexpr std::size_t kMaxPreTokenizers = 32;

struct PreTokenizerKind {
  std::string_view type;
  void (*add)(const Section&, PreTokenizerChain&);
};

constexpr std::array<PreTokenizerKind, 10> kPreTokenizers = {{
    {"BertPreTokenizer", add_bert_pretokenizer},
    {"ByteLevel", add_byte_level},
    {"CharDelimiterSplit", add_character_split},
    {"Digits", add_digits},
    {"FixedLength", add_fixed_length},
    {"Metaspace", add_metaspace},
    {"Punctuation", add_punctuation},
    {"Split", add_split},
    {"Whitespace", add_whitespace},
    {"WhitespaceSplit", add_whitespace_split},
}};

class ScanStep final : public PreTokenizer {
 public:
  explicit ScanStep(Scan scan) : scan_(scan) {}
  void split(Piece piece, PieceSink sink) const override {
    const char* p = piece.text.data();
    const char* const end = p + piece.text.size();
    while (p < end) {
      const char* next = scan_(p, end);
      sink(piece.part({p, static_cast<std::size_t>(next - p)}));
      p = next;
    }
  }
  Scan scan() const override { return scan_; }
  bool is_local_at_spaces() const override { return true; }  // scanners look no further

 private:
  Scan scan_;
};

}  // namespace

void PreTokenizerChain::add(std::unique_ptr<const PreTokenizer> step) {
  steps_.push_back(std::move(step));
  find_first_dear();
}

void PreTokenizerChain::add(Scan scan) { add(std::make_unique<ScanStep>(scan)); }

void PreTokenizerChain::remove_last() {
  steps_.pop_back();
  find_first_dear();
}

bool PreTokenizerChain::is_local_at_spaces() const {
  return std::ranges::all_of(steps_, [](const auto& step) { return step->is_local_at_spaces(); });
}

void PreTokenizerChain::find_first_dear() {
  first_dear_ = 0;
  for (std::size_t i = steps_.size(); i-- > 1 && steps_[i]->ignores_start();) {
    if (steps_[i]->is_dear()) first_dear_ = i;
  }
}

void add_pretokenizer(const Section& stage, PreTokenizerChain& chain) {
  for_steps(stage, "pretokenizers", "pre-tokenizer", kPreTokenizers,
            [&](const PreTokenizerKind& kind, const Section& step) {
              kind.add(step, chain);
              if (chain.size() <= kMaxPreTokenizers) return;
              step.refuse(fmt::format("a chain of more than {} pre-tokenizers", kMaxPreTokenizers));
            });
}

}  // namespace heddle
