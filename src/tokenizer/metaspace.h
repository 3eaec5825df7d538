#pragma once

#include <string>

namespace heddle {

class Section;

/// SentencePiece's way with spaces, as the Metaspace pre-tokenizer and decoder describe it: a
/// visible character stands for each, and one more may precede the text.
struct Metaspace {
  enum class Prepend { first, never, always };
  std::string replacement;
  Prepend prepend = Prepend::always;
  bool splits = true;  ///< into words, each with its space in front
};

Metaspace read_metaspace(const Section& step);

}  // namespace heddle
