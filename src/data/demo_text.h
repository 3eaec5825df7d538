#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace heddle {

struct DemoDocument {
  std::string text;
  double nats = 0;  ///< -ln of the probability of exactly this text, its end included
};

/// A small made-up language of short stories about a person, a place and animals, with agreement of
/// number and gender and with names that return: readable, quickly learnt, and of known entropy.
///
/// It is a Markov chain whose state can be read off the text (in no state is one choice the
/// beginning of another), so the probability of a text is the product of its choices, and the nats
/// of held-out text are the best loss any model can expect on it. Divided by its number of tokens
/// that is the best loss per token, whatever the tokenizer. Every document begins with the same
/// word: nothing is lost where the first token of a document is not predicted.
class DemoLanguage {
 public:
  DemoLanguage();

  /// A pure function of (seed, index).
  DemoDocument document(std::uint64_t seed, std::uint64_t index) const;
  /// Documents 0, 1, ... until their texts have at least `bytes` bytes together.
  std::vector<DemoDocument> documents(std::uint64_t seed, std::size_t bytes) const;

  /// The nats of a whole document; absent when the language cannot say it.
  std::optional<double> nats_of(std::string_view text) const;

  // Exact expectations, from the chain.
  double nats_per_document() const { return nats_per_document_; }
  double bytes_per_document() const { return bytes_per_document_; }
  double nats_per_byte() const { return nats_per_document_ / bytes_per_document_; }

 private:
  friend class DemoGrammar;
  struct Choice {
    std::string text;
    double probability;
    int next;  ///< state, or kEnd
  };
  using State = std::vector<Choice>;
  static constexpr int kEnd = -1;

  void check_states() const;
  void compute_expectations();

  std::vector<State> states_;
  int start_ = kEnd;
  double nats_per_document_ = 0, bytes_per_document_ = 0;
};

}  // namespace heddle
