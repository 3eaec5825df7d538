#include "tokenizer/byte_alphabet.h"
#include "tokenizer/pretokenizers/kinds.h"

namespace heddle {
namespace {

/// Puts a space before a piece that does not start with one.
class PrefixSpaceStep final : public PreTokenizer {
 public:
  void split(Piece piece, PieceSink sink) const override {
    if (piece.text.front() == ' ') return sink(piece);
    const std::string spaced = " " + std::string(piece.text);
    sink({spaced, piece.at_start});
  }
  bool is_dear() const override { return true; }
  bool is_local_at_spaces() const override { return true; }
};

class SpellBytesStep final : public PreTokenizer {
 public:
  void split(Piece piece, PieceSink sink) const override {
    const std::string spelled = spell_bytes(piece.text);
    sink({spelled, piece.at_start});
  }
  bool only_spells_bytes() const override { return true; }
  bool is_dear() const override { return true; }
  bool is_local_at_spaces() const override { return true; }
};

}  // namespace

void add_byte_level(const Section& step, PreTokenizerChain& chain) {
  if (step.flag("add_prefix_space", true)) chain.add(std::make_unique<PrefixSpaceStep>());
  if (step.flag("use_regex", true)) chain.add(scan_gpt2);
  chain.add(std::make_unique<SpellBytesStep>());
}

}  // namespace heddle
