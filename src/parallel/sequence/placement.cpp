#include "parallel/sequence/placement.h"

#include <algorithm>
#include <map>
#include <set>

namespace heddle {
namespace {

/// Stretch `index` of `count` equal ones.
TokenRun stretch(std::int64_t tokens, std::int64_t index, std::int64_t count) {
  const std::int64_t begin = tokens * index / count;
  return {begin, tokens * (index + 1) / count - begin};
}

/// Appends the part in pieces that begin at these positions, as far as they lie in it.
void append_cut(DocumentParts& to, const DocumentPart& part, const std::set<std::int64_t>& edges) {
  const auto add = [&](std::int64_t begin, std::int64_t end) {
    DocumentPart piece{part.document};
    for (const TokenRun& run : part.tokens) append(piece.tokens, within(run, begin, end));
    if (!piece.tokens.empty()) to.push_back(std::move(piece));
  };
  std::int64_t begin = part.first();
  for (auto edge = edges.upper_bound(begin); edge != edges.end() && *edge <= part.last(); ++edge) {
    add(begin, *edge);
    begin = *edge;
  }
  add(begin, part.last() + 1);
}

/// Cuts the parts of all ranks where `edge_of` says for the stretches of all.
template <class EdgeOf>
std::vector<DocumentParts> cut(const std::vector<DocumentParts>& by_rank, const EdgeOf& edge_of) {
  std::map<std::int64_t, std::set<std::int64_t>> edges;  // by document
  for (const DocumentParts& parts : by_rank) {
    for (const DocumentPart& part : parts) {
      for (const TokenRun& run : part.tokens) edges[part.document].insert(edge_of(run));
    }
  }
  std::vector<DocumentParts> pieces;
  for (const DocumentParts& parts : by_rank) {
    DocumentParts& own = pieces.emplace_back();
    for (const DocumentPart& part : parts) append_cut(own, part, edges.at(part.document));
  }
  return pieces;
}

}  // namespace

std::vector<TokenRuns> place_tokens(ContextOrder order, std::int64_t tokens, int ranks) {
  std::vector<TokenRuns> placed(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    TokenRuns& own = placed[static_cast<std::size_t>(rank)];
    if (order == ContextOrder::contiguous) {
      append(own, stretch(tokens, rank, ranks));
    } else if (order == ContextOrder::zigzag) {
      append(own, stretch(tokens, rank, 2 * ranks));
      append(own, stretch(tokens, 2 * ranks - 1 - rank, 2 * ranks));
    } else {
      append(own, TokenRun{rank, (tokens - rank + ranks - 1) / ranks, ranks});
    }
  }
  return placed;
}

DocumentParts parts_of(const TokenRuns& tokens, const std::vector<std::int64_t>& documents) {
  DocumentParts parts;
  std::int64_t begin = 0;
  std::size_t document = 0;
  for (const TokenRun& run : tokens) {
    for (; document < documents.size(); begin += documents[document++]) {
      const std::int64_t end = begin + documents[document];
      const TokenRun part = within(run, begin, end);
      if (part.count > 0) {
        const auto number = static_cast<std::int64_t>(document);
        if (parts.empty() || parts.back().document != number) parts.push_back({number});
        append(parts.back().tokens, part);
      }
      if (run.last() < end) break;  // the next run may have more of this document
    }
  }
  return parts;
}

std::optional<Tile> tile_of(const TokenRun& queries, const TokenRun& keys, Window window) {
  if (queries.last() < keys.first) return std::nullopt;
  Tile tile{.queries = queries, .keys = keys, .heads = {0, 1}};
  if (window) tile.keys = within(keys, queries.first - *window + 1, queries.last() + 1);
  if (tile.keys.count == 0) return std::nullopt;
  tile.is_causal = queries.first < tile.keys.last();
  if (window && queries.last() - *window >= tile.keys.first) tile.window = window;
  // Of tokens that are dealt out, a narrow window may lie between two.
  if (head_pairs(tile) == 0) return std::nullopt;
  return tile;
}

bool sees(const DocumentPart& queries, const DocumentPart& keys, Window window) {
  if (!window || queries.last() < keys.first()) return queries.last() >= keys.first();
  return std::ranges::any_of(queries.tokens, [&](const TokenRun& query_run) {
    return std::ranges::any_of(keys.tokens, [&](const TokenRun& key_run) {
      return tile_of(query_run, key_run, window).has_value();
    });
  });
}

std::vector<DocumentParts> cut_keys(const std::vector<DocumentParts>& by_rank, Window window) {
  if (!window) return by_rank;
  return cut(by_rank, [&](const TokenRun& queries) { return queries.first - *window + 1; });
}

std::vector<DocumentParts> cut_queries(const std::vector<DocumentParts>& by_rank, Window window) {
  if (!window) return by_rank;
  return cut(by_rank, [&](const TokenRun& keys) { return keys.last() + *window; });
}

}  // namespace heddle
