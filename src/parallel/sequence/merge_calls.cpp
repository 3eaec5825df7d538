#include "parallel/sequence/merge_calls.h"

#include <utility>

namespace heddle {
namespace {

bool begin_alike(const PieceRows& a, const PieceRows& b) {
  return a.piece == b.piece && a.heads == b.heads && a.first == b.first;
}

bool follow(const PieceRows& a, const PieceRows& b) {
  return a.piece == b.piece && a.heads == b.heads && a.first + a.count == b.first;
}

bool sees_all(const TileCall& call) { return call.ahead >= call.keys.count - 1; }

bool have_edges(const TileCall& first, const TileCall& second) {
  return first.has_window_edge() || second.has_window_edge();
}

/// The second has later keys for the same queries.
bool join_keys(TileCall& first, const TileCall& second) {
  const bool is_backward = first.key_results.count > 0;
  if (!(first.queries == second.queries && follow(first.keys, second.keys) &&
        (!is_backward || follow(first.key_results, second.key_results)) && sees_all(first))) {
    return false;
  }
  const std::int64_t ahead = first.keys.count + second.ahead;
  const bool goes_on = first.window == second.window && ahead == first.ahead;
  if (!goes_on && have_edges(first, second)) return false;
  if (!goes_on) first.window.reset();  // it would be measured across a gap
  first.ahead = ahead;
  first.keys.count += second.keys.count;
  if (is_backward) first.key_results.count += second.key_results.count;
  return true;
}

/// The second has later queries. Both begin at the same key.
bool join_queries(TileCall& first, const TileCall& second) {
  if (!(follow(first.queries, second.queries) && follow(first.results, second.results) &&
        begin_alike(first.keys, second.keys) &&
        begin_alike(first.key_results, second.key_results))) {
    return false;
  }
  const std::int64_t queries = first.queries.count;
  const std::int64_t next = first.ahead + first.jump + queries;
  const bool have_same_keys = first.keys.count == second.keys.count;
  const bool goes_on = second.ahead == next && second.window == first.window;
  const bool sees_no_more = next <= first.keys.count;
  if (goes_on && (have_same_keys || sees_no_more)) {
    first.keys = second.keys;
    first.key_results = second.key_results;
  } else if (have_same_keys && sees_all(first) && sees_all(second) && !have_edges(first, second)) {
    first.ahead = first.keys.count;
    first.window.reset();
  } else if (first.jump == 0 && second.ahead > next && sees_no_more && !first.window &&
             !second.window && second.keys.count >= first.keys.count) {
    first.jump = second.ahead - next;
    first.jump_at = queries;
    first.keys = second.keys;
    first.key_results = second.key_results;
  } else {
    return false;
  }
  first.queries.count += second.queries.count;
  first.results.count += second.results.count;
  return true;
}

/// Joins each call to the one before it, where that can be.
template <class Join>
void join_neighbours(std::vector<TileCall>& calls, const Join& join) {
  std::vector<TileCall> joined;
  for (const TileCall& call : calls) {
    if (joined.empty() || !join(joined.back(), call)) joined.push_back(call);
  }
  calls = std::move(joined);
}

}  // namespace

void merge_calls(std::vector<TileCall>& calls) {
  join_neighbours(calls, join_keys);
  join_neighbours(calls, join_queries);
}

}  // namespace heddle
