#include <algorithm>
#include <array>

#include "base/error.h"
#include "tokenizer/pretokenizers/kinds.h"

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

 private:
  Scan scan_;
};

}  // namespace

void PreTokenizerChain::add(Scan scan) { add(std::make_unique<ScanStep>(scan)); }

void add_pretokenizer(const Section& step, PreTokenizerChain& chain) {
  const std::string& type = step.string("type");
  if (type == "Sequence") {
    for (std::size_t i = 0; i < step.array("pretokenizers").size(); ++i) {
      add_pretokenizer(step.element("pretokenizers", i), chain);
    }
    return;
  }
  const auto kind = std::find_if(kPreTokenizers.begin(), kPreTokenizers.end(),
                                 [&](const PreTokenizerKind& one) { return one.type == type; });
  if (kind == kPreTokenizers.end()) step.refuse(fmt::format("pre-tokenizer {}", type));
  kind->add(step, chain);
  if (chain.size() > kMaxPreTokenizers) {
    step.refuse(fmt::format("a chain of more than {} pre-tokenizers", kMaxPreTokenizers));
  }
}

}  // namespace heddle
