#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "parallel/sequence/context_plan.h"

namespace heddle {

// A pass of a ContextPlan as one rank carries it out: rows of tensors in place of positions of a
// sequence. Made once for a micro-batch, walked by every layer (docs/design/029).

/// What a piece has of its tokens and heads.
enum class PieceKind : std::uint8_t {
  queries,      ///< q; in backward also dO, lse and delta
  keys,         ///< k and v; its heads are key heads
  outputs,      ///< a running output and its lse
  query_grads,  ///< a running dQ
  key_grads     ///< running dK and dV, of key heads
};

/// Tensors of some tokens and heads; token by token in the order of the runs.
struct Piece {
  PieceKind kind = PieceKind::queries;
  TokenRuns tokens = {};
  HeadRange heads = {};
  bool is_cleared = true;  ///< results: begin over no keys; else first calls write all of them
  /// Of dQ: calls begin at multiples of so many rows, and end there or with the piece; 0: there are
  /// no calls.
  std::int64_t row_multiple = 0;
};

/// Some neighbouring rows and heads of a piece.
struct PieceRows {
  int piece = 0;
  std::int64_t first = 0, count = 0;
  HeadRange heads = {};  ///< counted from the piece's first
  friend bool operator==(const PieceRows&, const PieceRows&) = default;
};

/// The same tokens and heads in two pieces.
struct RowsInTwo {
  PieceRows from, to;
};

/// What a message carries, and where it lies on this rank.
struct Transfer {
  Message message;
  /// The piece that is sent as it is, or that the message becomes; -1: rows of others.
  int piece = -1;
  std::vector<PieceRows> rows = {};  ///< in the order of the message's tokens
  /// It brings q, k or v of the receiver's share: what a second forward needs too.
  bool fills_share = false;
};
/// Whether two messages of a round, to different ranks, are put together from the same rows: once
/// is enough.
bool carry_the_same(const Transfer& a, const Transfer& b);

/// A call of a block kernel.
struct TileCall {
  PieceRows queries, keys;
  PieceRows results = {};      ///< outputs; in backward dQ
  PieceRows key_results = {};  ///< backward only
  std::int64_t ahead = 0;      ///< query s sees the keys up to ahead + s, if there are so many
  /// Queries from jump_at on see so many keys more: they lie further on in the sequence.
  std::int64_t jump = 0, jump_at = 0;
  std::optional<std::int64_t> window = {};  ///< and of these so many at most; absent: all
  bool is_first = false;                    ///< forward: results are written, not merged

  /// Whether some query does not see the first key because of the window.
  bool has_window_edge() const { return window && ahead + queries.count > *window; }
};
std::int64_t head_pairs(const TileCall& call);

/// See Round. What is to be sent is put together first, what was received is added last.
struct ProgramRound {
  /// Pieces of results, over no keys yet, or of no pairs, and of keys that are put together.
  std::vector<int> begins;
  /// Keys of several ranks that one call meets: copied into a piece in the order of the sequence,
  /// before everything else.
  std::vector<RowsInTwo> joined;
  std::vector<int> spent;  ///< pieces that nobody needs behind that
  std::vector<Transfer> sends, receives;
  std::vector<TileCall> tiles;
  std::vector<int> summed;  ///< pieces of dQ that no later call adds to
  /// Backward, behind the tiles: gradients of the rank's own keys in such a piece are added to its
  /// own, or are the first ones there.
  std::vector<RowsInTwo> added, written;
  /// Results that were received are added to what they belong to, with those that wait from earlier
  /// rounds; else they wait.
  bool puts_away = true;
  std::vector<int> ends;  ///< pieces that nobody needs behind this round
};

struct ContextProgram {
  /// The first ones are the rank's own: what it attends to (its share), by kind. Those of results
  /// are empty when the pass begins.
  enum Own : std::uint8_t { kQueries, kKeys, kResults, kKeyResults, kOwn };
  /// Where the share is not what the rank holds (ulysses, usp), also what it holds, in the same
  /// order: results have come home to it when the pass ends.
  enum Held : std::uint8_t { kHeldQueries = kOwn, kHeldKeys, kHeldResults, kHeldKeyResults };

  std::vector<Piece> pieces;
  bool exchanges_heads = false;
  /// Rows of the rank's own tokens in what it holds, and the same in its share; heads of queries
  /// and of keys.
  std::vector<RowsInTwo> queries_here, keys_here;
  std::vector<ProgramRound> rounds;
  /// Backward: the round before which delta is made, since dO of the share is there and needed.
  std::size_t delta_round = 0;
};

enum class ContextPassKind : std::uint8_t { forward, backward };
ContextProgram make_context_program(const ContextPlan& plan, ContextPassKind pass, int rank);

class AttentionMeter;

/// One rank's part in the attention of a micro-batch.
struct RankContext {
  ContextPlan plan;
  int rank = 0;
  ContextProgram forward, backward;
  std::int64_t head_pairs = 0;                      ///< that the rank computes, in either pass
  std::shared_ptr<AttentionMeter> meter = nullptr;  ///< of the layers that walk it; may be absent
  /// The same tokens in layers with windows that are narrower than some document.
  std::vector<RankContext> narrower = {};

  /// That of a layer with this window.
  const RankContext& of(std::optional<std::int64_t> window) const;
};
/// `windows`: of layers, each once.
std::shared_ptr<const RankContext> make_rank_context(
    const ContextShape& shape, int rank, std::shared_ptr<AttentionMeter> meter = nullptr,
    const std::vector<std::int64_t>& windows = {});

}  // namespace heddle
