#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "parallel/schedule/schedule.h"
#include "parallel/sequence/context_shape.h"
#include "parallel/sequence/token_run.h"

namespace heddle {

struct HeadRange {
  int first = 0, count = 0;
  friend bool operator==(const HeadRange&, const HeadRange&) = default;
};

/// What one call of a kernel computes: some queries against some keys of the same document. The
/// result is added to what its rank already has for these queries (backward: and keys).
struct Tile {
  TokenRun queries, keys;
  HeadRange heads = {};  ///< query heads
  /// Keys behind a query are left out; the runs have the same stride. Otherwise there are no such
  /// keys and all pairs are computed.
  bool is_causal = false;
  /// Keys that are so far before a query are left out, too, and runs have the same stride. Absent:
  /// there are none.
  std::optional<std::int64_t> window = {};
};

/// Which keys of a tile a query meets: they lie together.
struct MetKeys {
  std::int64_t begin = 0, end = 0;
};
MetKeys met_keys(const Tile& tile, std::int64_t query);

/// What a message has of its tokens and heads. Heads are key heads where K or V is in the name.
enum class Content : std::uint8_t {
  q,
  kv,
  out,          ///< partial: with its lse
  out_grad,     ///< dO
  q_with_grad,  ///< q, dO, lse and delta: all that a backward needs of queries
  q_grad,       ///< dQ
  kv_grad       ///< dK, dV
};

struct Message {
  int peer = 0;
  Content content = Content::kv;
  /// A result that others add to: it travels in float32 and is merged (`out` by lse, gradients as
  /// sums) with what the receiver has. Otherwise it is the whole and travels rounded.
  bool is_partial = false;
  HeadRange heads = {};
  TokenRuns tokens = {};
};

/// What a rank does between two waits. Exchanges and computation of a round run beside each other:
/// what is sent was there when the round began, what is received may be used in the next one. The
/// round ends when all of it has ended.
struct Round {
  std::vector<Message> sends, receives;  ///< in the same order on both sides, for each two ranks
  std::vector<Tile> tiles;
};

/// All ranks have the same number of rounds.
struct ContextPass {
  std::vector<std::vector<Round>> by_rank;

  int ranks() const { return static_cast<int>(by_rank.size()); }
  int rounds() const { return by_rank.empty() ? 0 : static_cast<int>(by_rank.front().size()); }
};

/// What a rank has complete rows of during attention. Not what it holds before and behind it, where
/// heads are exchanged for tokens (ulysses, usp).
struct AttentionShare {
  TokenRuns tokens = {};
  HeadRange heads = {}, key_heads = {};
};

/// Who sends what to whom and computes what when, so that every query meets every key it may see
/// once. The same data is validated, counted, simulated, drawn and executed.
struct ContextPlan {
  ContextShape shape;           ///< resolved
  std::vector<TokenRuns> held;  ///< by rank: its tokens, which everything beside attention sees
  /// By rank. q, k, v, o and lse of it are kept for the backward.
  std::vector<AttentionShare> shares;
  ContextPass forward, backward;
};

/// Error(usage) with all problems of the shape.
ContextPlan make_context_plan(const ContextShape& shape);

/// Everything that is wrong, in words: a pair of query and key that is computed twice, never, or
/// though the mask forbids it, by a rank that does not have both at that time; a result that does
/// not come home; a message without its counterpart in the same round, or of what its sender does
/// not have. Empty for a plan that gives the right result and never waits for ever.
std::vector<Diagnostic> validate(const ContextPlan& plan);

/// Elements by how they travel.
struct ContextTraffic {
  std::int64_t values = 0;      ///< q, k, v, and complete results, in the type of activations
  std::int64_t partials = 0;    ///< partial results
  std::int64_t statistics = 0;  ///< lse and delta, in float32

  ContextTraffic& operator+=(const ContextTraffic& more);
  /// What byte tables of papers count: statistics left out.
  std::int64_t payload() const { return values + partials; }
};

ContextTraffic traffic_of(const Message& message, const ContextShape& shape);

struct ElementBytes {
  int value = 2, partial = 4;
};
std::int64_t bytes_of(const ContextTraffic& traffic, const ElementBytes& sizes);

/// Pairs of query and key that a tile computes, times its heads.
std::int64_t head_pairs(const Tile& tile);

struct RankCounts {
  ContextTraffic sent;
  std::int64_t head_pairs = 0;
};
std::vector<RankCounts> count_by_rank(const ContextPass& pass, const ContextShape& shape);

}  // namespace heddle
