#include "parallel/sequence/placement.h"

#include <algorithm>

namespace heddle {
namespace {

/// Stretch `index` of `count` equal ones.
TokenRun stretch(std::int64_t tokens, std::int64_t index, std::int64_t count) {
  const std::int64_t begin = tokens * index / count;
  return {begin, tokens * (index + 1) / count - begin};
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

std::vector<DocumentPart> parts_of(const TokenRuns& tokens,
                                   const std::vector<std::int64_t>& documents) {
  std::vector<DocumentPart> parts;
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

}  // namespace heddle
