#include <limits>

#include "base/error.h"
#include "tokenizer/pretokenizers/kinds.h"
#include "tokenizer/unicode/characters.h"

namespace heddle {
namespace {

/// Pieces of so many characters.
class FixedLengthStep final : public PreTokenizer {
 public:
  explicit FixedLengthStep(std::int64_t length) : length_(length) {}
  void split(Piece piece, PieceSink sink) const override {
    std::size_t begin = 0, end = 0;
    std::int64_t characters = 0;
    for_each_character(piece.text, [&](char32_t, std::string_view bytes) {
      end += bytes.size();
      if (++characters < length_) return;
      sink(piece.part(piece.text.substr(begin, end - begin)));
      begin = end;
      characters = 0;
    });
    if (begin < end) sink(piece.part(piece.text.substr(begin)));
  }

 private:
  std::int64_t length_;
};

}  // namespace

void add_fixed_length(const Section& step, PreTokenizerChain& chain) {
  const std::int64_t length = step.count("length", 5, std::numeric_limits<std::int32_t>::max());
  if (length == 0) step.refuse("length = 0");
  chain.add(std::make_unique<FixedLengthStep>(length));
}

}  // namespace heddle
