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

/// The second has later keys for the same queries.
bool join_keys(TileCall& first, const TileCall& second) {
  const bool is_backward = first.key_results.count > 0;
  if (!(first.queries == second.queries && follow(first.keys, second.keys) &&
        (!is_backward || follow(first.key_results, second.key_results)) && sees_all(first))) {
    return false;
  }
  first.ahead = first.keys.count + second.ahead;
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
  const bool have_same_keys = first.keys.count == second.keys.count;
  const bool goes_on = second.ahead == first.ahead + queries;
  const bool sees_no_more = first.ahead + queries <= first.keys.count;
  if (goes_on && (have_same_keys || sees_no_more)) {
    first.keys = second.keys;
    first.key_results = second.key_results;
  } else if (have_same_keys && sees_all(first) && sees_all(second)) {
    first.ahead = first.keys.count;
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
