#include <algorithm>

#include "base/check.h"
#include "parallel/sequence/context_plan.h"

namespace heddle {
namespace {

/// Pairs in which the key is not behind the query. The runs have the same stride. Positions of
/// queries may be negative.
std::int64_t causal_pairs(const TokenRun& queries, const TokenRun& keys) {
  HEDDLE_CHECK(queries.stride == keys.stride, "a causal tile of strides {} and {}", queries.stride,
               keys.stride);
  // Queries before `first` see no key. Each from there to before `all` sees one more than the one
  // before it, those from `all` on see every key.
  const std::int64_t first = keys_up_to(keys.first - 1, queries);
  const std::int64_t seen = first < queries.count ? keys_up_to(queries.at(first), keys) : 0;
  const std::int64_t all = std::min(queries.count, first + keys.count - seen);
  const std::int64_t rising = all - first;
  return rising * seen + rising * (rising - 1) / 2 + (queries.count - all) * keys.count;
}

}  // namespace

MetKeys met_keys(const Tile& tile, std::int64_t query) {
  return {tile.window ? keys_up_to(query - *tile.window, tile.keys) : 0,
          tile.is_causal ? keys_up_to(query, tile.keys) : tile.keys.count};
}

ContextTraffic& ContextTraffic::operator+=(const ContextTraffic& more) {
  values += more.values;
  partials += more.partials;
  statistics += more.statistics;
  return *this;
}

ContextTraffic traffic_of(const Message& message, const ContextShape& shape) {
  const std::int64_t rows = tokens_in(message.tokens) * message.heads.count;
  const std::int64_t elements = rows * shape.head_dim;
  const auto result = [&](std::int64_t size) {
    return message.is_partial ? ContextTraffic{.partials = size} : ContextTraffic{.values = size};
  };
  switch (message.content) {
    case Content::q:
    case Content::out_grad: return {.values = elements};
    case Content::kv: return {.values = 2 * elements};
    case Content::q_with_grad: return {.values = 2 * elements, .statistics = 2 * rows};
    case Content::q_grad: return result(elements);
    case Content::kv_grad: return result(2 * elements);
    case Content::out: {
      ContextTraffic traffic = result(elements);
      if (message.is_partial) traffic.statistics = rows;
      return traffic;
    }
  }
  return {};
}

std::int64_t bytes_of(const ContextTraffic& traffic, const ElementBytes& sizes) {
  constexpr int kStatisticBytes = 4;
  return traffic.values * sizes.value + traffic.partials * sizes.partial +
         traffic.statistics * kStatisticBytes;
}

std::int64_t head_pairs(const Tile& tile) {
  const auto& [queries, keys, heads, is_causal, window] = tile;
  std::int64_t pairs = is_causal ? causal_pairs(queries, keys) : queries.count * keys.count;
  if (window) {
    // A query that is a window earlier would see just what this one does not any more.
    pairs -= causal_pairs({queries.first - *window, queries.count, queries.stride}, keys);
  }
  return pairs * heads.count;
}

std::vector<RankCounts> count_by_rank(const ContextPass& pass, const ContextShape& shape) {
  std::vector<RankCounts> counts(pass.by_rank.size());
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    for (const Round& round : pass.by_rank[rank]) {
      for (const Message& message : round.sends) counts[rank].sent += traffic_of(message, shape);
      for (const Tile& tile : round.tiles) counts[rank].head_pairs += head_pairs(tile);
    }
  }
  return counts;
}

}  // namespace heddle
