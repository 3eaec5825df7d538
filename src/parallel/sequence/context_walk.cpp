#include "parallel/sequence/context_walk.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "ops/attention.h"
#include "ops/cast.h"
#include "ops/elementwise.h"
#include "ops/query_sums.h"
#include "parallel/sequence/piece_parts.h"

namespace heddle {
namespace {

using Own = ContextProgram::Own;
using Held = ContextProgram::Held;

/// One buffer for all, or two where statistics are of another type.
PieceTensors allocate_parts(PieceParts parts, std::int64_t tokens, std::int64_t heads,
                            std::int64_t head_dim, DType dtype, Ctx& ctx) {
  const std::int64_t each = tokens * heads * head_dim, statistics = tokens * heads;
  const std::int64_t rows_end = parts.rows * each;
  PieceTensors made;
  const bool is_one = parts.statistics == 0 || dtype == statistics_of(dtype);
  const std::int64_t in_first = rows_end + (is_one ? parts.statistics * statistics : 0);
  made.buffers[0] = ctx.workspace({in_first}, dtype);
  if (!is_one)
    made.buffers[1] = ctx.workspace({parts.statistics * statistics}, statistics_of(dtype));
  for (int i = 0; i < parts.rows; ++i) {
    made.rows[static_cast<std::size_t>(i)] =
        made.buffers[0].slice(0, i * each, (i + 1) * each).view({1, tokens, heads, head_dim});
  }
  const Tensor& in = made.buffers[is_one ? 0 : 1];
  const std::int64_t begin = is_one ? rows_end : 0;
  for (int i = 0; i < parts.statistics; ++i) {
    made.statistics[static_cast<std::size_t>(i)] =
        in.slice(0, begin + i * statistics, begin + (i + 1) * statistics).view({1, heads, tokens});
  }
  return made;
}

/// The tokens from `first` on, of some heads.
PieceTensors box(const PieceTensors& whole, std::int64_t first, std::int64_t count,
                 HeadRange heads) {
  PieceTensors part;
  for (std::size_t i = 0; i < whole.rows.size(); ++i) {
    if (!whole.rows[i].defined()) continue;
    part.rows[i] = whole.rows[i]
                       .slice(1, first, first + count)
                       .slice(2, heads.first, heads.first + heads.count);
  }
  for (std::size_t i = 0; i < whole.statistics.size(); ++i) {
    if (!whole.statistics[i].defined()) continue;
    part.statistics[i] = whole.statistics[i]
                             .slice(1, heads.first, heads.first + heads.count)
                             .slice(2, first, first + count);
  }
  if (whole.sums.defined()) {
    const std::int64_t tiles = whole.sums.size(2);
    const std::int64_t tile = whole.sums.size(3) / whole.rows[0].size(3);
    part.sums = whole.sums.slice(1, heads.first, heads.first + heads.count)
                    .slice(2, first / tile, std::min((first + count + tile - 1) / tile, tiles));
  }
  return part;
}

}  // namespace

PieceTensors ContextWalk::box(const PieceRows& rows) {
  return heddle::box(piece(rows.piece), rows.first, rows.count, rows.heads);
}

ContextWalk::ContextWalk(const Setting& setting, std::vector<PieceTensors> own, Communicator& ranks,
                         Ctx& ctx)
    : setting_(setting), ranks_(ranks), ctx_(ctx), pieces_(std::move(own)) {
  pieces_.resize(setting.program.pieces.size());
}

PieceTensors ContextWalk::allocate(PieceKind kind, std::int64_t tokens, std::int64_t heads,
                                   DType dtype) const {
  return allocate_parts(parts_of(kind), tokens, heads, setting_.head_dim, dtype, ctx_);
}

PieceTensors ContextWalk::allocate(const Message& message, DType dtype) const {
  return allocate_parts(parts_of(message), tokens_in(message.tokens), message.heads.count,
                        setting_.head_dim, dtype, ctx_);
}

DType ContextWalk::travels_as(const Message& message) const {
  return message.is_partial ? wide() : setting_.dtype;
}

void ContextWalk::clear(int index) {
  if (described(index).is_cleared && !begin_sums(index)) clear_rows(piece(index));
}

void ContextWalk::clear_rows(PieceTensors& results) {
  results.has_rows = true;
  for (const Tensor& rows : results.rows) {
    if (rows.defined()) ops::fill(rows, 0.0, ctx_.stream);
  }
  if (results.statistics[0].defined()) {
    ops::fill(results.statistics[0], -std::numeric_limits<double>::infinity(), ctx_.stream);
  }
}

bool ContextWalk::begin_sums(int index) {
  const Piece& what = described(index);
  if (what.kind != PieceKind::query_grads || what.row_multiple == 0) return false;
  const Tensor& q = piece(Own::kQueries).rows[0];  // as all queries of the walk
  const std::int64_t tile = ops::query_sum_tile(q, ctx_.stream);
  if (tile == 0 || what.row_multiple % tile != 0) return false;
  const std::int64_t tiles = (tokens_in(what.tokens) + tile - 1) / tile;
  piece(index).sums =
      ctx_.workspace({1, what.heads.count, tiles, tile * setting_.head_dim}, wide());
  ops::fill(piece(index).sums, 0.0, ctx_.stream);
  piece(index).has_rows = false;
  return true;
}

void ContextWalk::end_sums(int index) {
  PieceTensors& results = piece(index);
  if (!results.sums.defined()) return;
  ops::query_grads_of_sums(results.sums, setting_.scale,
                           results.has_rows ? ops::QueryGrads::added : ops::QueryGrads::written,
                           results.rows[0], ctx_.stream);
  results.sums = {};
  results.has_rows = true;
}

void ContextWalk::copy(const PieceTensors& from, const PieceTensors& to) {
  const auto each = [&](const Tensor& source, const Tensor& target) {
    if (source.defined() && target.defined()) ops::copy(source, target, ctx_.stream);
  };
  for (std::size_t i = 0; i < from.rows.size(); ++i) each(from.rows[i], to.rows[i]);
  for (std::size_t i = 0; i < from.statistics.size(); ++i) {
    each(from.statistics[i], to.statistics[i]);
  }
}

void ContextWalk::add(PieceKind kind, const PieceTensors& from, const PieceTensors& to) {
  const bool is_complete = !from.statistics[0].defined() || !to.statistics[0].defined();
  if (kind == PieceKind::outputs && !is_complete) {
    ops::attention_merge(from.rows[0], from.statistics[0], to.rows[0], to.statistics[0],
                         ctx_.stream);
    return;
  }
  for (std::size_t i = 0; i < from.rows.size(); ++i) {
    if (from.rows[i].defined()) ops::accumulate(from.rows[i], to.rows[i], ctx_.stream);
  }
}

template <class Visit>
void ContextWalk::for_each_part(const Transfer& transfer, const PieceTensors& message,
                                const Visit& visit) {
  std::int64_t at = 0;
  for (const PieceRows& rows : transfer.rows) {
    visit(heddle::box(message, at, rows.count, {0, rows.heads.count}), box(rows));
    at += rows.count;
  }
}

PieceTensors ContextWalk::put_together(const Transfer& transfer) {
  const Message& message = transfer.message;
  // What is added up is rounded once, when it is complete.
  const bool is_sum = is_result(piece_kind_of(message.content));
  const PieceTensors made = allocate(message, is_sum ? wide() : travels_as(message));
  for_each_part(transfer, made, [&](const PieceTensors& part, const PieceTensors& rows) {
    // dO alone lies second among the tensors of queries.
    if (message.content == Content::out_grad) {
      ops::copy(rows.rows[1], part.rows[0], ctx_.stream);
    } else {
      copy(rows, part);
    }
  });
  if (made.buffers[0].dtype() == travels_as(message)) return made;
  const PieceTensors rounded = allocate(message, travels_as(message));
  ops::cast(made.buffers[0], rounded.buffers[0], ctx_.stream);
  return rounded;
}

ContextWalk::UnderWay ContextWalk::send(const Transfer& transfer,
                                        const std::vector<UnderWay>& sent) {
  const auto same = std::ranges::find_if(
      sent, [&](const UnderWay& other) { return carry_the_same(other.transfer, transfer); });
  UnderWay begun{transfer, transfer.piece >= 0  ? piece(transfer.piece)
                           : same != sent.end() ? same->tensors
                                                : put_together(transfer)};
  for (const Tensor& buffer : begun.tensors.buffers) {
    if (!buffer.defined()) continue;
    begun.works.push_back(ranks_.send(buffer, transfer.message.peer, ctx_.stream));
  }
  return begun;
}

ContextWalk::UnderWay ContextWalk::receive(const Transfer& transfer) {
  const Message& message = transfer.message;
  UnderWay received{transfer, allocate(message, travels_as(message))};
  for (const Tensor& buffer : received.tensors.buffers) {
    if (buffer.defined()) received.works.push_back(ranks_.recv(buffer, message.peer, ctx_.stream));
  }
  return received;
}

void ContextWalk::put_away(UnderWay& received) {
  const Transfer& transfer = received.transfer;
  const Message& message = transfer.message;
  if (transfer.piece >= 0) {
    piece(transfer.piece) = std::move(received.tensors);
    return;
  }
  PieceTensors whole = received.tensors;
  const PieceKind kind = piece_kind_of(message.content);
  if (is_result(kind) && whole.buffers[0].dtype() != wide()) {
    whole = allocate(message, wide());
    ops::cast(received.tensors.buffers[0], whole.buffers[0], ctx_.stream);
  }
  for (const PieceRows& rows : transfer.rows) {
    if (!piece(rows.piece).has_rows) clear_rows(piece(rows.piece));
  }
  for_each_part(transfer, whole, [&](const PieceTensors& part, const PieceTensors& rows) {
    if (message.content == Content::out_grad) {
      ops::copy(part.rows[0], rows.rows[1], ctx_.stream);
    } else if (is_result(kind)) {
      add(kind, part, rows);
    } else {
      copy(part, rows);
    }
  });
}

ContextWalk::Exchange ContextWalk::begin(const ProgramRound& round, bool only_share) {
  Exchange begun;
  ranks_.begin_group();
  for (const Transfer& transfer : round.receives) {
    if (transfer.fills_share || !only_share) begun.received.push_back(receive(transfer));
  }
  for (const Transfer& transfer : round.sends) {
    if (transfer.fills_share || !only_share) begun.sent.push_back(send(transfer, begun.sent));
  }
  ranks_.end_group();
  return begun;
}

template <class Do>
void ContextWalk::timed(Seconds which, const Do& work) {
  const bool is_timed = setting_.meter != nullptr && setting_.meter->is_on() &&
                        ctx_.stream.device().kind == Device::Kind::cpu;
  if (!is_timed) return work();
  const Stopwatch watch;
  work();
  AttentionTimes& times = setting_.meter->of(setting_.layer);
  (times.*which)[static_cast<std::size_t>(setting_.pass)] += watch.seconds();
}

void ContextWalk::end(Exchange& exchange) {
  const auto wait = [&](const UnderWay& message) {
    for (const Work& work : message.works) work.wait(ctx_.stream);
  };
  for (UnderWay& message : exchange.received) {
    timed(&AttentionTimes::exposed, [&] { wait(message); });
    put_away(message);
  }
  if (exchange.sent.empty()) return;
  timed(&AttentionTimes::exposed, [&] {
    for (const UnderWay& message : exchange.sent) wait(message);
  });
}

void ContextWalk::compute(const TileCall& call) {
  const ops::AttentionMask mask{.query_offset = std::max<std::int64_t>(call.ahead, 0),
                                .first_key_BS = {},
                                .key_offset = std::max<std::int64_t>(-call.ahead, 0)};
  const PieceTensors queries = box(call.queries), keys = box(call.keys);
  const PieceTensors results = box(call.results);
  if (setting_.pass == ContextPassKind::forward) {
    ops::attention_block_forward(queries.rows[0], keys.rows[0], keys.rows[1], mask, setting_.scale,
                                 call.is_first ? ops::KeyBlock::first : ops::KeyBlock::further,
                                 results.rows[0], results.statistics[0], ctx_.stream);
    return;
  }
  const PieceTensors key_results = box(call.key_results);
  if (results.sums.defined()) {
    ops::attention_block_backward_to_sums(queries.rows[1], queries.rows[0], keys.rows[0],
                                          keys.rows[1], queries.statistics[0],
                                          queries.statistics[1], mask, setting_.scale, results.sums,
                                          key_results.rows[0], key_results.rows[1], ctx_.stream);
    return;
  }
  ops::attention_block_backward(queries.rows[1], queries.rows[0], keys.rows[0], keys.rows[1],
                                queries.statistics[0], queries.statistics[1], mask, setting_.scale,
                                results.rows[0], key_results.rows[0], key_results.rows[1],
                                ctx_.stream);
}

void ContextWalk::play(const ProgramRound& round) {
  for (const int index : round.begins) {
    const Piece& what = described(index);
    piece(index) = allocate(what.kind, tokens_in(what.tokens), what.heads.count,
                            is_result(what.kind) ? wide() : setting_.dtype);
    if (is_result(what.kind)) clear(index);
  }
  for (const auto& [from, to] : round.joined) copy(box(from), box(to));
  for (const int index : round.spent) piece(index) = {};
  Exchange exchange = begin(round, false);
  for (const TileCall& tile : round.tiles) compute(tile);
  for (const int index : round.summed) end_sums(index);
  for (const auto& [from, to] : round.added) add(described(from.piece).kind, box(from), box(to));
  end(exchange);
  for (const int index : round.ends) piece(index) = {};
}

void ContextWalk::take_own() {
  const auto take = [&](const std::vector<RowsInTwo>& here) {
    for (const auto& [held, share] : here) copy(box(held), box(share));
  };
  take(setting_.program.queries_here);
  take(setting_.program.keys_here);
}

void ContextWalk::bring_own_home() {
  const auto bring = [&](const std::vector<RowsInTwo>& here, int from, int to) {
    for (auto [held, share] : here) {
      share.piece = from;
      held.piece = to;
      add(described(from).kind, box(share), box(held));
    }
  };
  bring(setting_.program.queries_here, Own::kResults, Held::kHeldResults);
  if (setting_.pass == ContextPassKind::forward) return;
  bring(setting_.program.keys_here, Own::kKeyResults, Held::kHeldKeyResults);
}

void ContextWalk::run() {
  timed(&AttentionTimes::seconds, [&] { walk(); });
}

void ContextWalk::walk() {
  const ContextProgram& program = setting_.program;
  for (const int results : {Own::kResults, Own::kKeyResults}) clear(results);
  if (program.exchanges_heads) {
    for (const int results : {Held::kHeldResults, Held::kHeldKeyResults}) clear(results);
    take_own();
  }
  for (std::size_t round = 0; round < program.rounds.size(); ++round) {
    if (setting_.pass == ContextPassKind::backward && round == program.delta_round) {
      const PieceTensors& own = piece(Own::kQueries);
      ops::attention_delta(own.rows[1], setting_.output, own.statistics[1], ctx_.stream);
    }
    ranks_.flight().set_attention_round(static_cast<int>(round));
    play(program.rounds[round]);
  }
  ranks_.flight().set_attention_round(-1);
  if (program.exchanges_heads) bring_own_home();
}

void ContextWalk::fill_share() {
  timed(&AttentionTimes::seconds, [&] {
    take_own();
    const std::vector<ProgramRound>& rounds = setting_.program.rounds;
    for (std::size_t round = 0; round < rounds.size(); ++round) {
      ranks_.flight().set_attention_round(static_cast<int>(round));
      Exchange exchange = begin(rounds[round], true);
      end(exchange);
    }
    ranks_.flight().set_attention_round(-1);
  });
}

}  // namespace heddle
