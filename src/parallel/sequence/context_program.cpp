#include "parallel/sequence/context_program.h"

#include <algorithm>

#include "base/check.h"
#include "ops/attention.h"
#include "parallel/sequence/call_marks.h"
#include "parallel/sequence/merge_calls.h"
#include "parallel/sequence/piece_parts.h"
#include "parallel/sequence/piece_table.h"

namespace heddle {
namespace {

using Own = ContextProgram::Own;
using Held = ContextProgram::Held;

class ProgramBuilder {
 public:
  ProgramBuilder(const ContextPlan& plan, ContextPassKind kind, int rank)
      : plan_(plan),
        pass_(kind == ContextPassKind::forward ? plan.forward : plan.backward),
        is_forward_(kind == ContextPassKind::forward),
        rank_(static_cast<std::size_t>(rank)) {
    add_own();
  }

  ContextProgram build() {
    const auto& rounds = pass_.by_rank[rank_];
    program_.delta_round = rounds.size();
    for (const Round& round : rounds) {
      program_.rounds.emplace_back();
      pieces_.begin_round();
      add(round);
    }
    program_.pieces = pieces_.finish(program_.rounds);
    mark_first_results(program_,
                       is_forward_ ? ContextPassKind::forward : ContextPassKind::backward);
    if (!is_forward_) mark_last_calls(program_);
    mark_waiting(program_);
    return std::move(program_);
  }

 private:
  PieceKind results() const { return is_forward_ ? PieceKind::outputs : PieceKind::query_grads; }
  std::size_t now() const { return program_.rounds.size() - 1; }

  void add_own_pieces(const TokenRuns& tokens, HeadRange heads, HeadRange key_heads) {
    pieces_.add(PieceKind::queries, tokens, heads);
    pieces_.add(PieceKind::keys, tokens, key_heads);
    pieces_.add(results(), tokens, heads);
    pieces_.add(PieceKind::key_grads, tokens, key_heads);
  }

  void add_own() {
    const AttentionShare& share = plan_.shares[rank_];
    const TokenRuns& held = plan_.held[rank_];
    const HeadRange all{0, plan_.shape.heads}, all_keys{0, plan_.shape.key_heads};
    add_own_pieces(share.tokens, share.heads, share.key_heads);
    program_.exchanges_heads = share.tokens != held || share.heads != all;
    if (program_.exchanges_heads) {
      add_own_pieces(held, all, all_keys);
      program_.queries_here = overlap(Own::kQueries, Held::kHeldQueries, share.heads);
      program_.keys_here = overlap(Own::kKeys, Held::kHeldKeys, share.key_heads);
    }
    pieces_.end_own();
  }

  std::vector<RowsInTwo> overlap(int share, int held, HeadRange heads) const {
    std::vector<RowsInTwo> all;
    for (TokenRun run : pieces_[held].tokens) {
      while (run.count > 0) {
        const PieceRows in_share = pieces_.rows_in(share, run, heads);
        const TokenRun part{run.first, in_share.count, run.stride};
        all.push_back({pieces_.rows_in(held, part, heads), in_share});
        run = {run.at(part.count), run.count - part.count, run.stride};
      }
    }
    return all;
  }

  /// A piece of results, or of keys that are put together, that begins in this round.
  int begin(PieceKind kind, const TokenRuns& tokens, HeadRange heads) {
    const int index = pieces_.add(kind, tokens, heads);
    program_.rounds.back().begins.push_back(index);
    return index;
  }

  void add(const Round& round) {
    if (!round.tiles.empty() || std::ranges::any_of(round.sends, [](const Message& message) {
          return message.content == Content::q_with_grad;
        })) {
      program_.delta_round = std::min(program_.delta_round, now());
    }
    join_keys(round.tiles);
    for (const Message& message : round.sends) add_send(message);
    for (const Transfer& transfer : program_.rounds.back().sends) forget(transfer);
    for (const Tile& tile : round.tiles) add_tile(tile);
    merge_calls(program_.rounds.back().tiles);
    for (const Message& message : round.receives) add_receive(message);
  }

  void add_send(const Message& message) {
    const PieceKind kind = piece_kind_of(message.content);
    Transfer transfer{.message = message, .fills_share = fills_share(message, message.peer)};
    transfer.rows = pieces_.find_all(kind, message.tokens, message.heads);
    if (transfer.rows.empty()) {  // results of nothing
      HEDDLE_CHECK(is_result(kind), "a message of what its sender does not have");
      transfer.piece = begin(kind, message.tokens, message.heads);
    } else if (const int whole = transfer.rows.front().piece;
               !pieces_.is_own(whole) && pieces_[whole].tokens == message.tokens &&
               pieces_[whole].heads == message.heads && message.is_partial == is_result(kind)) {
      transfer.piece = whole;
    }
    if (transfer.piece >= 0) transfer.rows.clear();
    program_.rounds.back().sends.push_back(std::move(transfer));
  }

  /// Foreign results leave with their message: others of the same tokens begin anew.
  void forget(const Transfer& transfer) {
    if (!is_result(piece_kind_of(transfer.message.content))) return;
    if (transfer.piece >= 0) pieces_.leave(pieces_.all_of(transfer.piece));
    for (const PieceRows& rows : transfer.rows) pieces_.leave(rows);
  }

  bool fills_share(const Message& message, int receiver) const {
    const AttentionShare& share = plan_.shares[static_cast<std::size_t>(receiver)];
    const PieceKind kind = piece_kind_of(message.content);
    if (is_result(kind)) return false;
    return contains(kind == PieceKind::keys ? share.key_heads : share.heads, message.heads) &&
           lies_in(message.tokens, share.tokens);
  }

  void add_receive(const Message& message) {
    const PieceKind kind = piece_kind_of(message.content);
    Transfer transfer{.message = message,
                      .fills_share = fills_share(message, static_cast<int>(rank_))};
    if (is_result(kind) || transfer.fills_share) {
      transfer.rows = pieces_.find_all(kind, message.tokens, message.heads);
    }
    if (transfer.rows.empty()) {
      transfer.piece = pieces_.add(kind, message.tokens, message.heads);
    }
    program_.rounds.back().receives.push_back(std::move(transfer));
  }

  HeadRange key_heads_of(const Tile& tile) const {
    const int group = plan_.shape.group(), first = tile.heads.first / group;
    return {first, (tile.heads.first + tile.heads.count - 1) / group + 1 - first};
  }

  /// Keys of tiles that no piece has as a whole are put together in one, by heads.
  void join_keys(const std::vector<Tile>& tiles) {
    std::vector<std::pair<HeadRange, TokenRuns>> wanted;
    for (const Tile& tile : tiles) {
      const HeadRange heads = key_heads_of(tile);
      if (pieces_.find(PieceKind::keys, tile.keys, heads, tile.keys.count).count > 0) continue;
      auto same = std::ranges::find(wanted, heads, &std::pair<HeadRange, TokenRuns>::first);
      if (same == wanted.end()) same = wanted.insert(same, {heads, {}});
      same->second.push_back(tile.keys);
    }
    for (const auto& [heads, keys] : wanted) join_keys(united(keys), heads);
  }

  /// The piece has all tokens of the messages that some of these come from, so that their gradients
  /// can go home from one piece, too.
  void join_keys(const TokenRuns& keys, HeadRange heads) {
    const std::vector<PieceRows> from = pieces_.find_all(PieceKind::keys, keys, heads);
    HEDDLE_CHECK(!from.empty(), "a tile of keys that its rank does not have");
    TokenRuns tokens = keys;
    for (const PieceRows& rows : from) {
      if (pieces_.is_own(rows.piece)) continue;
      const TokenRuns& all = pieces_[rows.piece].tokens;
      tokens.insert(tokens.end(), all.begin(), all.end());
      pieces_.spend(rows.piece);
    }
    const int joint = begin(PieceKind::keys, united(std::move(tokens)), heads);
    joints_.push_back({.keys = joint});
    auto part = from.begin();
    for (TokenRun run : keys) {
      while (run.count > 0) {
        const TokenRun rows{run.first, part->count, run.stride};
        program_.rounds.back().joined.push_back({*part++, pieces_.rows_in(joint, rows, heads)});
        run = {run.at(rows.count), run.count - rows.count, run.stride};
      }
    }
  }

  /// Keys that were put together, and their gradients.
  struct Joint {
    int keys = -1, grads = -1;
  };
  Joint* joint_of(int keys) {
    const auto found = std::ranges::find(joints_, keys, &Joint::keys);
    return found == joints_.end() ? nullptr : &*found;
  }

  /// Gradients of the rank's own keys that were put together with others' go to its own.
  int begin_grads(int joint) {
    const HeadRange heads = pieces_[joint].heads;
    const int grads = begin(PieceKind::key_grads, pieces_[joint].tokens, heads);
    for (const TokenRun& own : pieces_[Own::kKeys].tokens) {
      for (const TokenRun& run : pieces_[joint].tokens) {
        const TokenRun rows = within(own, run.first, run.last() + 1);
        if (rows.count == 0) continue;
        program_.rounds.back().added.push_back(
            {pieces_.rows_in(grads, rows, heads), pieces_.rows_in(Own::kKeyResults, rows, heads)});
      }
    }
    return grads;
  }

  /// Where keys were put together, all of the round are taken from there.
  PieceRows find_keys(const TokenRun& run, HeadRange heads) {
    for (const Joint& joint : joints_) {
      const PieceRows rows = pieces_.rows_in(joint.keys, run, heads);
      if (pieces_.is_used_now(joint.keys) && rows.count == run.count) return rows;
    }
    return find_one(PieceKind::keys, run, heads);
  }
  PieceRows grads_of_keys(const TokenRun& run, HeadRange heads, const PieceRows& keys) {
    Joint* const joint = joint_of(keys.piece);
    if (joint == nullptr) return results_of(PieceKind::key_grads, run, heads, keys);
    if (joint->grads < 0) joint->grads = begin_grads(joint->keys);
    pieces_.use(joint->grads);
    return pieces_.rows_in(joint->grads, run, heads);
  }

  /// Of a tile, which lies in one piece.
  PieceRows find_one(PieceKind kind, const TokenRun& run, HeadRange heads) {
    const PieceRows rows = pieces_.find(kind, run, heads, run.count);
    HEDDLE_CHECK(rows.count == run.count, "a tile of what its rank does not have in one piece");
    return rows;
  }

  /// Results of a tile: where there are none yet, they begin for all that came with `given`.
  PieceRows results_of(PieceKind kind, const TokenRun& run, HeadRange heads,
                       const PieceRows& given) {
    if (const PieceRows rows = pieces_.find(kind, run, heads, run.count); rows.count > 0)
      return rows;
    begin(kind, pieces_[given.piece].tokens, pieces_[given.piece].heads);
    return find_one(kind, run, heads);
  }

  void add_tile(const Tile& tile) {
    const HeadRange key_heads = key_heads_of(tile);
    TileCall call{.queries = find_one(PieceKind::queries, tile.queries, tile.heads),
                  .keys = find_keys(tile.keys, key_heads)};
    call.results = results_of(results(), tile.queries, tile.heads, call.queries);
    if (!is_forward_) {
      call.key_results = grads_of_keys(tile.keys, key_heads, call.keys);
    }
    const auto last_key = [&](std::int64_t position) {  // up to there, for the first query
      return ops::AttentionMask{.query_offset = position,
                                .first_key_BS = {},
                                .key_offset = tile.keys.first,
                                .step = tile.queries.stride}
          .last_key();
    };
    const auto window = plan_.shape.window;
    call.ahead = tile.is_causal || window ? last_key(tile.queries.first)
                                          : tile.keys.count;  // behind all of them
    if (window) call.window = call.ahead - last_key(tile.queries.first - *window);
    program_.rounds.back().tiles.push_back(call);
  }

  const ContextPlan& plan_;
  const ContextPass& pass_;
  const bool is_forward_;
  const std::size_t rank_;
  ContextProgram program_;
  PieceTable pieces_;
  std::vector<Joint> joints_;
};

}  // namespace

bool carry_the_same(const Transfer& a, const Transfer& b) {
  return a.piece < 0 && b.piece < 0 && a.rows == b.rows && a.message.content == b.message.content &&
         a.message.is_partial == b.message.is_partial;
}

std::int64_t head_pairs(const TileCall& call) {
  const auto pairs_of = [&](std::int64_t ahead, std::int64_t queries) {
    const std::int64_t zero = 0;
    return head_pairs(Tile{.queries = {std::max(ahead, zero), queries},
                           .keys = {std::max(-ahead, zero), call.keys.count},
                           .heads = call.queries.heads,
                           .is_causal = true,
                           .window = call.window});
  };
  if (call.jump == 0) return pairs_of(call.ahead, call.queries.count);
  return pairs_of(call.ahead, call.jump_at) +
         pairs_of(call.ahead + call.jump_at + call.jump, call.queries.count - call.jump_at);
}

ContextProgram make_context_program(const ContextPlan& plan, ContextPassKind pass, int rank) {
  return ProgramBuilder(plan, pass, rank).build();
}

namespace {

RankContext rank_context(const ContextShape& shape, int rank,
                         std::shared_ptr<AttentionMeter> meter) {
  RankContext context;
  context.plan = make_context_plan(shape);
  context.rank = rank;
  context.forward = make_context_program(context.plan, ContextPassKind::forward, rank);
  context.backward = make_context_program(context.plan, ContextPassKind::backward, rank);
  for (const Round& round : context.plan.forward.by_rank[static_cast<std::size_t>(rank)]) {
    for (const Tile& tile : round.tiles) context.head_pairs += head_pairs(tile);
  }
  context.meter = std::move(meter);
  return context;
}

}  // namespace

const RankContext& RankContext::of(std::optional<std::int64_t> window) const {
  if (!window || std::ranges::max(plan.shape.documents) <= *window) return *this;
  const auto found = std::ranges::find(
      narrower, window, [](const RankContext& context) { return context.plan.shape.window; });
  HEDDLE_CHECK(found != narrower.end(), "no rounds for a window of {}", *window);
  return *found;
}

std::shared_ptr<const RankContext> make_rank_context(const ContextShape& shape, int rank,
                                                     std::shared_ptr<AttentionMeter> meter,
                                                     const std::vector<std::int64_t>& windows) {
  auto all = std::make_shared<RankContext>(rank_context(shape, rank, meter));
  ContextShape narrow = all->plan.shape;  // what was left open is open no more
  for (const std::int64_t window : windows) {
    if (std::ranges::max(narrow.documents) <= window) continue;
    narrow.window = window;
    all->narrower.push_back(rank_context(narrow, rank, meter));
  }
  return all;
}

}  // namespace heddle
