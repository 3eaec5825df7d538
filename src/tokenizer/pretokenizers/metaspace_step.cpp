#include "tokenizer/metaspace.h"
#include "tokenizer/patterns/behavior.h"
#include "tokenizer/pretokenizers/kinds.h"

namespace heddle {
namespace {

class MetaspaceStep final : public PreTokenizer {
 public:
  explicit MetaspaceStep(Metaspace metaspace)
      : space_(std::move(metaspace)),
        separator_(decode_utf8(space_.replacement.data(),
                               space_.replacement.data() + space_.replacement.size())
                       .value) {}

  void split(Piece piece, PieceSink sink) const override {
    const std::string marked = with_marks(piece);
    const Piece whole{marked, piece.at_start};
    if (!space_.splits) return sink(whole);
    for_each_piece_at(
        marked, SplitBehavior::merged_with_next, [&](char32_t c) { return c == separator_; },
        [&](std::string_view part) { sink(whole.part(part)); });
  }

  bool is_dear() const override { return true; }
  bool is_local_at_spaces() const override { return true; }
  bool ignores_start() const override { return space_.prepend != Metaspace::Prepend::first; }

 private:
  std::string with_marks(Piece piece) const {
    const std::string& mark = space_.replacement;
    std::string marked;
    marked.reserve(piece.text.size() + piece.text.size() / 2);
    const bool may_prepend = space_.prepend == Metaspace::Prepend::always ||
                             (space_.prepend == Metaspace::Prepend::first && piece.at_start);
    if (may_prepend && piece.text.front() != ' ' && !piece.text.starts_with(mark)) marked = mark;
    for (std::string_view rest = piece.text; !rest.empty();) {
      const std::size_t space = rest.find(' ');
      marked += rest.substr(0, space);
      if (space == std::string_view::npos) break;
      marked += mark;
      rest.remove_prefix(space + 1);
    }
    return marked;
  }

  Metaspace space_;
  char32_t separator_;
};

}  // namespace

void add_metaspace(const Section& step, PreTokenizerChain& chain) {
  chain.add(std::make_unique<MetaspaceStep>(read_metaspace(step)));
}

}  // namespace heddle
