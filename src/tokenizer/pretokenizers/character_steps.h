#pragma once

#include "tokenizer/patterns/behavior.h"
#include "tokenizer/pretokenizers/pretokenizer.h"

namespace heddle {

/// Cuts at characters that a function finds.
class CharacterStep final : public PreTokenizer {
 public:
  using Test = bool (*)(char32_t);
  CharacterStep(Test is_delimiter, SplitBehavior behavior)
      : is_delimiter_(is_delimiter), behavior_(behavior) {}
  void split(Piece piece, PieceSink sink) const override {
    for_each_piece_at(piece.text, behavior_, is_delimiter_,
                      [&](std::string_view part) { sink(piece.part(part)); });
  }
  bool is_local_at_spaces() const override { return true; }

 private:
  Test is_delimiter_;
  SplitBehavior behavior_;
};

}  // namespace heddle
