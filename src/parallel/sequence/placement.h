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

using DocumentParts = std::vector<DocumentPart>;

/// The tokens of a rank by document, in order.
DocumentParts parts_of(const TokenRuns& tokens, const std::vector<std::int64_t>& documents);

using Window = std::optional<std::int64_t>;  ///< keys that a query sees; see ContextShape

/// All queries against the keys, with a window only against those that some query sees; none where
/// no query sees a key. Both are of the same document.
std::optional<Tile> tile_of(const TokenRun& queries, const TokenRun& keys, Window window);

/// Whether some query sees some key; both are of the same document.
bool sees(const DocumentPart& queries, const DocumentPart& keys, Window window);

/// Parts of keys of each rank, cut where the window of a stretch of queries begins: the stretch
/// sees either all of a part or nothing, as far as its window decides. So no more keys travel than
/// are seen. Parts stay as they are where there is no window.
std::vector<DocumentParts> cut_keys(const std::vector<DocumentParts>& by_rank, Window window);
/// The same of queries: cut where they have left all keys of a stretch behind.
std::vector<DocumentParts> cut_queries(const std::vector<DocumentParts>& by_rank, Window window);

/// Calls `visit(index in keys, queries, keys)` for all parts where queries see keys.
template <class Visit>
void for_each_seen(const DocumentParts& queries, const DocumentParts& keys, Window window,
                   const Visit& visit) {
  auto first = queries.begin();
  for (std::size_t i = 0; i < keys.size(); ++i) {
    while (first != queries.end() && first->document < keys[i].document) ++first;
    for (auto query = first; query != queries.end() && query->document == keys[i].document;
         ++query) {
      if (sees(*query, keys[i], window)) visit(i, *query, keys[i]);
    }
  }
}

}  // namespace heddle
