#pragma once

#include "parallel/sequence/context_plan.h"

namespace heddle {

/// The tokens of each of `ranks` ranks. Any number of tokens will do; ranks differ by one, or by
/// two where they have two stretches.
std::vector<TokenRuns> place_tokens(ContextOrder order, std::int64_t tokens, int ranks);

/// What a rank has of one document.
struct DocumentPart {
  std::int64_t document = 0;
  TokenRuns tokens = {};

  std::int64_t first() const { return tokens.front().first; }
  std::int64_t last() const { return tokens.back().last(); }
};

/// The tokens of a rank by document, in order.
std::vector<DocumentPart> parts_of(const TokenRuns& tokens,
                                   const std::vector<std::int64_t>& documents);

/// Whether some query sees some key; both are of the same document.
inline bool sees(const DocumentPart& queries, const DocumentPart& keys) {
  return queries.last() >= keys.first();
}

/// Calls `visit(index in keys, queries, keys)` for all parts where queries see keys.
template <class Visit>
void for_each_seen(const std::vector<DocumentPart>& queries, const std::vector<DocumentPart>& keys,
                   const Visit& visit) {
  auto query = queries.begin();
  for (std::size_t i = 0; i < keys.size(); ++i) {
    while (query != queries.end() && query->document < keys[i].document) ++query;
    if (query == queries.end()) return;
    if (query->document == keys[i].document && sees(*query, keys[i])) visit(i, *query, keys[i]);
  }
}

}  // namespace heddle
