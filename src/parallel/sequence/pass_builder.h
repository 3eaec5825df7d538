#pragma once

#include "parallel/sequence/placement.h"

namespace heddle {

/// What of tokens a message has; see Message.
struct Parcel {
  Content content = Content::kv;
  HeadRange heads = {};
  bool is_partial = false;
};

/// Puts the rounds of one pass together. Rounds may be named in any order.
class PassBuilder {
 public:
  explicit PassBuilder(const ContextShape& shape)
      : window_(shape.window), by_rank_(static_cast<std::size_t>(shape.ranks)) {}

  /// Of one document. Nothing for keys that no query sees.
  void compute(int round, int rank, const DocumentPart& queries, const DocumentPart& keys,
               HeadRange heads);
  /// The same for all documents of a rank's own tokens.
  void compute_own(int round, int rank, const DocumentParts& parts, HeadRange heads);

  /// Joins a message of the same kind between the two ranks that was added to this round shortly
  /// before. Nothing for no tokens.
  void send(int round, int from, int to, const Parcel& parcel, const TokenRuns& tokens);

  /// Without rounds in which no rank does anything. The builder is empty then.
  ContextPass finish();

 private:
  Round& at(int rank, int round);

  Window window_;
  std::vector<std::vector<Round>> by_rank_;
  std::size_t rounds_ = 0;
};

}  // namespace heddle
